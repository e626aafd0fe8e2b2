"""polytask combine: several adapter files, one model."""

from pathlib import Path
from typing import Annotated

import typer

import polytask
from polytask.cli.console import echo


def run(
    encoder: Annotated[
        str,
        typer.Argument(
            metavar="TRUNK", help="A run, a model folder, or an encoder such as minilm.", show_default=False
        ),
    ],
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="[NAME=]FILE", help="Files of `polytask export`; NAME renames a task.", show_default=False
        ),
    ],
    output: Annotated[
        Path, typer.Option("--output", metavar="DIR", help="The new model's folder.", show_default=False)
    ],
    max_length: Annotated[
        int | None, typer.Option(help="Longest sequence in tokens, where the files differ in it.", show_default=False)
    ] = None,
) -> None:
    """Put tasks of one or several runs together into one model, on the encoder they were all trained on.

    Examples:

        polytask combine minilm opinion.adapter.safetensors topic.adapter.safetensors --output models/two

        polytask combine runs/quickstart old=opinion.adapter.safetensors new=opinion-2.safetensors --output models/both
    """
    folder = polytask.combine(encoder, [named(file) for file in files], output, max_length)
    tasks = polytask.load(folder).tasks
    echo(f"{folder}: {', '.join(tasks)}\nNext: polytask predict {folder} --task {tasks[0]} --text ...")


def named(value: str) -> str | tuple[str, str]:
    """`NAME=FILE` as a pair; a file whose own name has a `=` is that file."""
    name, equals, file = value.partition("=")
    return (name, file) if equals and not Path(value).exists() else value
