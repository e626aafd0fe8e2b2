"""polytask evaluate: evaluates a finished run again."""

from typing import Annotated

import typer

import polytask
from polytask.cli.console import plain_console
from polytask.cli.init import pairs
from polytask.cli.options import RunFolder, TrustPlugins
from polytask.cli.tables import calibration_line, scores_table


def run(
    folder: RunFolder,
    split: Annotated[str, typer.Option(help="The data to use: dev, test or train, as in the recipe.")] = "dev",
    on: Annotated[
        list[str],
        typer.Option("--on", metavar="TASK=FILE", help="Evaluate this file instead of the split's. Repeatable."),
    ] = [],  # noqa: B006
    trust_plugins: TrustPlugins = False,
) -> None:
    """Evaluate a finished run on its dev or test data, or on other files.

    Examples:

        polytask evaluate runs/quickstart

        polytask evaluate runs/quickstart --on opinion=more-opinions.csv
    """
    console = plain_console()
    report = polytask.evaluate_run(folder, split, pairs("--on", on), trust_plugins)
    console.print(scores_table(report))
    for task, count in report.skipped.items():
        if count:
            rows = "1 broken row was" if count == 1 else f"{count:,} broken rows were"
            console.print(f"{task}: {rows} skipped (broken_rows: skip)", soft_wrap=True, highlight=False)
    for task, count in report.blank.items():
        if count:
            rows = "1 row" if count == 1 else f"{count:,} rows"
            console.print(f"{task}: {rows} without a label left out", soft_wrap=True, highlight=False)
    for task, count in report.truncated.items():
        if count:
            rows = "1 row has" if count == 1 else f"{count:,} rows have"
            cut = f"{task}: warning: {rows} more tokens than max_length, and only a part of the text was used"
            console.print(cut, soft_wrap=True, highlight=False)
    for task, measured in report.calibration.items():
        console.print(calibration_line(task, measured), soft_wrap=True, highlight=False)
    for task, path in report.predictions.items():
        console.print(f"{task}: predictions written to {path}", soft_wrap=True, highlight=False)
