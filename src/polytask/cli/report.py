"""polytask report: writes a run's report again, and heat maps of one text."""

from typing import Annotated

import typer

import polytask
from polytask.cli.console import echo
from polytask.cli.options import RunFolder, TrustPlugins


def run(
    folder: RunFolder,
    text: Annotated[
        list[str] | None,
        typer.Option(
            help="Also write attention.html: heat maps of attention and activations for this text. Repeat it for tasks "
            "with several texts.",
            show_default=False,
        ),
    ] = None,
    text2: Annotated[str | None, typer.Option(help="The second text, for a task with pairs.")] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(help="An option, for a task of kind choice. Repeatable.", show_default=False),
    ] = None,
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
    if not text and (text2 is not None or task is not None or option):
        raise typer.BadParameter("--text2, --option and --task need --text")
    if text:
        echo(polytask.write_text_maps(folder, text, text2, task, trust_plugins, options=option or ()))
    echo(polytask.write_report(folder))
