"""polytask export: one task of a run as a small file."""

from pathlib import Path
from typing import Annotated

import typer

import polytask
from polytask.cli.console import echo


def run(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The run's folder.", show_default=False)],
    adapter: Annotated[
        str, typer.Option("--adapter", metavar="TASK", help="The task to take out of the run.", show_default=False)
    ],
    output: Annotated[
        Path | None, typer.Option("--output", help="The file; left out: TASK.adapter.safetensors.", show_default=False)
    ] = None,
) -> None:
    """Write one task's adapter and head to a small file. It fits the encoder it was trained on, and no other.

    Trained with `train.parts: adapters`, that encoder is the encoder itself, and files of many runs fit together.

    Examples:

        polytask export runs/quickstart --adapter opinion

        polytask export runs/quickstart --adapter opinion --output shared/mood.safetensors
    """
    file = polytask.export_adapter(folder, adapter, output)
    echo(f"{file}: {file.stat().st_size:,} bytes\nNext: polytask combine TRUNK {file} ... --output DIR")
