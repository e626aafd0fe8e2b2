"""polytask encoder: downloads and verifies an encoder."""

from typing import Annotated

import typer

import polytask
from polytask.cli.console import plain_console


def run(
    name: Annotated[
        str, typer.Argument(help="minilm, a folder, or a hub id such as bert-base-uncased or ID@REVISION.")
    ] = "minilm",
) -> None:
    """Download an encoder if necessary, verify its files, and describe it.

    Examples:

        polytask encoder minilm

        polytask encoder bert-base-uncased

        polytask encoder bert-base-uncased@86b5e0934494bd15c9632b12f734a8a67f723594
    """
    console = plain_console()
    folder = polytask.find_encoder(name)
    facts = polytask.describe_encoder(folder)
    files = facts.pop("files")
    for key, value in facts.items():
        shown = f"{value:,}" if isinstance(value, int) else value
        console.print(f"{key}: {shown}", soft_wrap=True, highlight=False)
    for file in files:
        console.print(
            f"  {file['name']}  {file['bytes']:,} bytes  sha256 {file['sha256']}", soft_wrap=True, highlight=False
        )
