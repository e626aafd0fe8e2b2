"""polytask push: uploads a model to the Hugging Face hub."""

from pathlib import Path
from typing import Annotated

import typer

import polytask
from polytask.cli.console import echo


def run(
    folder: Annotated[
        Path, typer.Argument(metavar="RUN", help="The folder of the run, or an exported folder.", show_default=False)
    ],
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="The repository, such as my-name/my-model.", show_default=False)
    ],
    public: Annotated[
        bool, typer.Option("--public", help="Create the repository as a public one. Default: a private one.")
    ] = False,
) -> None:
    """Upload a run's model, or an exported folder, with its model card to the Hugging Face hub.

    Log in first with `hf auth login`, or set HF_TOKEN. Data and predictions of the run are not uploaded.

    Examples:

        polytask push runs/quickstart my-name/quickstart

        polytask push runs/quickstart/onnx my-name/quickstart-onnx --public
    """
    echo(polytask.push(folder, name, public))
