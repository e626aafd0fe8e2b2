"""polytask report: writes a run's report again."""

import polytask
from polytask.cli.console import echo
from polytask.cli.options import RunFolder


def run(folder: RunFolder) -> None:
    """Write a run's report.html again; the run may still be training.

    Example:

        polytask report runs/quickstart
    """
    echo(polytask.write_report(folder))
