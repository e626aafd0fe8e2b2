"""polytask tune: searches for better settings of a recipe within a time."""

from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

import polytask
from polytask.cli.console import plain_console
from polytask.cli.engine import Address, CpusPerCell, EngineName, EngineOption, GpusPerCell, Workers, make_engine
from polytask.cli.options import RecipeFile, Settings, TrustPlugins


def run(
    recipe: RecipeFile,
    budget: Annotated[
        str,
        typer.Option(metavar="TIME", help="The time of the whole command: 90s, 20m or 2h; a number alone is minutes."),
    ],
    vary: Annotated[
        list[str],
        typer.Option(
            metavar="FIELD=VALUES",
            help="A field to vary: FIELD=A,B,C or FIELD=LOW..HIGH, with :log for orders of magnitude. Repeatable. "
            "Default: learning rates, batch size, warm-up, dropout, sampler and the adapter's size.",
        ),
    ] = [],  # noqa: B006
    setting: Settings = [],  # noqa: B006
    folder: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The tuning's folder. Default: tuning/NAME.")
    ] = None,
    workers: Workers = None,
    engine: EngineOption = EngineName.local,
    address: Address = None,
    cpus_per_cell: CpusPerCell = None,
    gpus_per_cell: GpusPerCell = None,
    hold_back: Annotated[
        str,
        typer.Option(
            metavar="SHARE", help="Share of the dev rows that only the final verdict uses, or test: the test files."
        ),
    ] = "0.5",
    top: Annotated[int, typer.Option(help="Number of trials that run again with fresh seeds, at most.")] = 3,
    trust_plugins: TrustPlugins = False,
) -> None:
    """Search for better settings of a recipe within a time, and test whether they beat it on held-back rows.

    Needs Optuna: `pip install 'polytask[tune]'`. The same command continues a tuning that was stopped or killed; a
    larger budget continues one that has finished. After Ctrl-C or SIGTERM it writes its page with what has finished.

    Examples:

        polytask tune recipes/quickstart.yaml --budget 20m

        polytask tune recipe.yaml --budget 2h --vary optimizer.lr=1e-5..1e-3:log --vary train.batch_size=16,32

        polytask tune recipe.yaml --budget 30m --vary "adapter=none,{name: pal, size: 96}" --workers 4
    """
    console = plain_console()
    runner = make_engine("tune", engine, workers, address, cpus_per_cell, gpus_per_cell)
    options = {"hold_back": hold_back, "top": top, "trust_plugins": trust_plugins, "engine": runner}
    tuning = polytask.start_tuning(recipe, budget, vary, setting, folder, **options)  # type: ignore[arg-type]
    for field in tuning.plan.fields:
        console.print(f"varies {field.field}: {field}", highlight=False, soft_wrap=True)
    try:
        follow(tuning, console)
    except SystemExit:  # Ctrl-C or SIGTERM; the runs have saved their checkpoints
        show(tuning.finish(), console)
        raise
    show(tuning.finish(), console)


def follow(tuning: "polytask.Tuning", console: Console) -> None:
    """Runs the tuning, and prints a line for each run that has ended."""
    with closing(tuning.reports()) as reports:  # if a signal stops the loop, the runs end before the page is written
        for report in reports:
            if report.state in ("done", "failed"):
                clock = f"{tuning.budget.used / 60:.1f} of {tuning.budget.total / 60:.1f} min"
                console.print(f"{clock}  {_line(report)}".rstrip(), highlight=False, soft_wrap=True)


def _line(report: "polytask.TuneReport") -> str:
    settings = ", ".join(f"{field}={_text(value)}" for field, value in report.settings.items())
    if report.score is None:
        return f"{report.name}, {report.part}: FAILED  {settings}\n{report.error}"
    return f"{report.name}, {report.part}: {100 * report.score:.1f} points  {settings}"


def show(tuned: "polytask.Tuned", console: Console) -> None:
    """Prints the answer and the files."""
    lines = [tuned.sentence, f"recipe: {tuned.best}", f"report: {tuned.page}"]
    lines[1:1] = [f"  {field}: {_text(value)}" for field, value in tuned.settings.items()]
    for line in lines:
        console.print(line, highlight=False, soft_wrap=True)


def _text(value: Any) -> str:
    return "default" if value is None else str(value)
