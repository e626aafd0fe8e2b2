"""polytask combine: makes one model of several adapter files."""

from pathlib import Path
from typing import Annotated

import typer

import polytask
from polytask.cli.console import echo
from polytask.cli.options import TrustPlugins


def run(
    encoder: Annotated[
        str,
        typer.Argument(
            metavar="ENCODER", help="A run, a model folder, or an encoder such as minilm.", show_default=False
        ),
    ],
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="[NAME=]FILE", help="Files of `polytask export`; NAME renames the task.", show_default=False
        ),
    ],
    output: Annotated[
        Path, typer.Option("--output", metavar="DIR", help="The folder of the new model.", show_default=False)
    ],
    max_length: Annotated[
        int | None,
        typer.Option(help="Maximum sequence length in tokens; required if the files differ.", show_default=False),
    ] = None,
    plugin: Annotated[
        list[str],
        typer.Option("--plugin", metavar="FILE", help="A plug-in with methods of the files. Repeatable."),
    ] = [],  # noqa: B006
    trust_plugins: TrustPlugins = False,
) -> None:
    """Combine exported tasks of one or several runs into one model.

    All files must have been trained on the same encoder. Methods of plug-ins need their files: those of ENCODER, if it
    is a run or a model folder, and those of --plugin. The new model gets copies.

    Examples:

        polytask combine minilm opinion.adapter.safetensors topic.adapter.safetensors --output models/two

        polytask combine runs/quickstart old=opinion.adapter.safetensors new=opinion-2.safetensors --output models/both
    """
    parts = [split_name(file) for file in files]
    folder = polytask.combine(encoder, parts, output, max_length, plugin, trust_plugins)
    tasks = polytask.load(folder).tasks
    echo(f"{folder}: {', '.join(tasks)}\nNext: polytask predict {folder} --task {tasks[0]} --text ...")


def split_name(value: str) -> str | tuple[str, str]:
    """Splits `NAME=FILE` into a pair, unless a file with that whole name exists."""
    name, equals, file = value.partition("=")
    return (name, file) if equals and not Path(value).exists() else value
