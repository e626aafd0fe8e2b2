"""polytask encoder: fetch and verify an encoder."""

from typing import Annotated

import typer
from rich.console import Console

from polytask import describe_encoder, find_encoder


def run(
    name: Annotated[str, typer.Argument(help="minilm, a folder, or a hub id such as bert-base-uncased.")] = "minilm",
) -> None:
    """Fetch an encoder, check its files, and say what it is.

    Examples:

        polytask encoder minilm

        polytask encoder bert-base-uncased
    """
    console = Console()
    folder = find_encoder(name)
    console.print(f"{name}: {folder}", soft_wrap=True, highlight=False)
    for key, value in describe_encoder(folder).items():
        if key == "files":
            for file, facts in value.items():
                line = "  ".join(f"{k} {v:,}" if isinstance(v, int) else f"{k} {v}" for k, v in facts.items())
                console.print(f"  {file}  {line}", soft_wrap=True, highlight=False)
        else:
            console.print(f"  {key}: {value:,}" if isinstance(value, int) else f"  {key}: {value}", highlight=False)
