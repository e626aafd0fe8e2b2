"""polytask report: writes a run's report again, and heat maps of one text."""

from typing import Annotated

import typer

import polytask
from polytask.cli.console import echo
from polytask.cli.options import RunFolder, TrustPlugins


def run(
    folder: RunFolder,
    text: Annotated[
        str | None,
        typer.Option(help="Also write attention.html: heat maps of attention and activations for this text."),
    ] = None,
    text2: Annotated[str | None, typer.Option(help="The second text, for a task with pairs.")] = None,
    task: Annotated[
        str | None, typer.Option(help="The task that reads the text. Default: the first that takes this many texts.")
    ] = None,
    trust_plugins: TrustPlugins = False,
) -> None:
    """Write a run's report.html again; the run may still be training.

    Examples:

        polytask report runs/quickstart

        polytask report runs/quickstart --text "Not bad at all." --task opinion
    """
    if text is None and (text2 is not None or task is not None):
        raise typer.BadParameter("--text2 and --task need --text")
    if text is not None:
        echo(polytask.write_text_maps(folder, text, text2, task, trust_plugins))
    echo(polytask.write_report(folder))
