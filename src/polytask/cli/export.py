"""polytask export: writes one task of a run as a small file."""

from pathlib import Path
from typing import Annotated

import typer

import polytask
from polytask.cli.console import echo
from polytask.cli.options import RunFolder, TrustPlugins


def run(
    folder: RunFolder,
    adapter: Annotated[str, typer.Option("--adapter", metavar="TASK", help="The task to export.", show_default=False)],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", metavar="FILE", help="The file to write. Default: TASK.adapter.safetensors.", show_default=False
        ),
    ] = None,
    trust_plugins: TrustPlugins = False,
) -> None:
    """Write one task's adapter and head to a small file.

    The file fits only the encoder that the task was trained on. With `train.parts: adapters` that is the pretrained
    encoder itself, so that files of several runs can be combined.

    Examples:

        polytask export runs/quickstart --adapter opinion

        polytask export runs/quickstart --adapter opinion --output shared/mood.safetensors
    """
    file = polytask.export_adapter(folder, adapter, output, trust_plugins)
    echo(f"{file}: {file.stat().st_size:,} bytes\nNext: polytask combine ENCODER {file} ... --output DIR")
