"""polytask report: the page of a run, made again."""

from pathlib import Path
from typing import Annotated

import typer

import polytask
from polytask.cli.console import echo


def run(folder: Annotated[Path, typer.Argument(metavar="RUN", help="The run's folder.", show_default=False)]) -> None:
    """Write a run's report.html anew, also for a run that is still going on.

    Example:

        polytask report runs/quickstart
    """
    echo(polytask.write_report(folder))
