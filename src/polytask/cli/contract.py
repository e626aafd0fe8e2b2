"""polytask contract: checks whether the methods of a plug-in file do what training expects of them."""

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

import polytask
from polytask.cli.console import plain_console
from polytask.cli.options import TrustPlugins


def run(
    plugin: Annotated[
        Path, typer.Argument(metavar="FILE", help="A Python file that registers methods.", show_default=False)
    ],
    setting: Annotated[
        list[str],
        typer.Option("--set", metavar="NAME.OPTION=VALUE", help="An option of one of the methods. Repeatable."),
    ] = [],  # noqa: B006
    trust_plugins: TrustPlugins = False,
) -> None:
    """Check every method of a plug-in file against the contract of its table.

    The checks are those of polytask's own methods: for example, that an adapter's tasks do not affect each other, or
    that a sampler continues with the same draws after a restart. They use tiny models and take seconds. The exit code
    is 1 if a check fails.

    Examples:

        polytask contract my_method.py --trust-plugins

        polytask contract my_method.py --set mine.size=8
    """
    console = plain_console()
    method, checks, failed = None, 0, 0
    for outcome in polytask.run_contracts(plugin, setting, trust_plugins):
        if (outcome.table, outcome.name) != method:
            method = outcome.table, outcome.name
            console.print(Text.assemble((outcome.name, "bold cyan"), f"  ({outcome.table})"))
        checks, failed = checks + 1, failed + (outcome.problem is not None)
        mark = ("pass", "green") if outcome.problem is None else ("FAIL", "bold red")
        console.print(Text.assemble("  ", mark, "  ", outcome.claim), soft_wrap=True)
        if outcome.problem is not None:
            console.print(Text(f"        {outcome.problem}"), soft_wrap=True)
    if failed:
        raise polytask.UserError(f"{plugin}: {failed} of {checks} checks failed")
    console.print(f"All {checks} checks passed.", highlight=False)
