"""polytask compare: trains several recipes and tests which one is better."""

import time
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

import polytask
from polytask.cli.console import counted, plain_console
from polytask.cli.engine import (
    Address,
    CpusPerCell,
    EngineName,
    EngineOption,
    GpusPerCell,
    Workers,
    check_options,
    make_engine,
    refuse,
)
from polytask.cli.options import TrustPlugins


def run(
    what: Annotated[
        list[Path], typer.Argument(metavar="STUDY.yaml | RUN RUN ...", help="A study file, or finished runs.")
    ],
    folder: Annotated[
        Path | None, typer.Option("--study", metavar="DIR", help="The study's folder. Default: studies/NAME.")
    ] = None,
    workers: Workers = None,
    engine: EngineOption = EngineName.local,
    address: Address = None,
    cpus_per_cell: CpusPerCell = None,
    gpus_per_cell: GpusPerCell = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Show the plan, its cost and which differences it could detect; run nothing."),
    ] = False,
    page_only: Annotated[
        bool, typer.Option("--page-only", help="Write the page of what has finished so far; run nothing.")
    ] = False,
    margin: Annotated[
        float | None,
        typer.Option(
            help="Differences that are surely smaller than this many points count as equal. Default: the study's, or "
            "0.5."
        ),
    ] = None,
    trust_plugins: TrustPlugins = False,
) -> None:
    """Train the variants of a study with several seeds, and test statistically which one is better.

    An interrupted study continues where it stopped; finished runs are not repeated. After Ctrl-C or SIGTERM it writes
    its page with what has finished; `--page-only` does the same for a study that was killed or is still running.

    Examples:

        polytask compare recipes/studies/quickstart.yaml --workers 2

        polytask compare recipes/studies/quickstart.yaml --dry-run

        polytask compare recipes/studies/quickstart.yaml --page-only

        polytask compare study.yaml --engine ray --address auto --gpus-per-cell 0.5

        polytask compare runs/first runs/second
    """
    console = plain_console()
    if len(what) > 1 or what[0].is_dir():
        if dry_run or page_only:
            option = "--dry-run" if dry_run else "--page-only"
            raise typer.BadParameter(f"{option} requires a study file; these runs have finished")
        chosen = None if engine is EngineName.local else engine
        options = {"--engine": chosen, "--workers": workers, "--address": address, "--cpus-per-cell": cpus_per_cell}
        refuse({**options, "--gpus-per-cell": gpus_per_cell}, "a study file; these runs have finished")
        target = folder or Path("comparison")
        show(polytask.compare_runs(what, target, margin), target, console)
        return
    study, runner = polytask.read_study(what[0]), None
    if dry_run or page_only:
        check_options(engine, workers, address, cpus_per_cell, gpus_per_cell)
    else:
        runner = make_engine("compare", engine, workers, address, cpus_per_cell, gpus_per_cell)
    count = 1 if workers is None else workers
    running = polytask.StudyRunning(study, folder, count, margin, trust_plugins, runner)
    if dry_run:
        show_plan(running, console)
        return
    if page_only:
        show_page(running, console)
        return
    try:
        follow(running, console)
    except SystemExit:  # Ctrl-C or SIGTERM; the runs have saved their checkpoints
        show_page(running, console)
        raise
    show(running.finish(), running.folder, console)
    if running.errors:
        raise polytask.UserError(
            f"{len(running.errors)} of {len(running.plan.cells)} runs failed; run the command again to retry them"
        )


def show_page(running: "polytask.StudyRunning", console: Console) -> None:
    """Writes and shows the results so far."""
    left, runs = len(running.waiting), len(running.plan.cells)
    console.print(f"{runs - left} of {runs} runs have finished; the page shows these", highlight=False)
    show(running.finish(), running.folder, console)


def show_plan(running: "polytask.StudyRunning", console: Console) -> None:
    cells = running.plan.cells
    variants, seeds = counted(len(running.study.recipes), "variant"), counted(len(running.study.seeds), "seed")
    console.print(f"{variants} x {seeds}: {counted(len(cells), 'run')}", highlight=False)
    costs = {(c.cell.variant, c.cell.seed): c for c in running.costs()}
    for cell in cells:
        cost = costs.get((cell.variant, cell.seed))
        time_left = "done" if cost is None else f"about {minutes(cost.seconds)} (from {cost.measured})"
        console.print(
            f"  {cell.variant}, seed {cell.seed}: {cell.steps:,} steps, {time_left}", highlight=False, soft_wrap=True
        )
    total = sum(cost.seconds for cost in costs.values())
    workers = min(running.workers, max(len(costs), 1))
    console.print(
        f"Expected: {minutes(total / workers)} with {workers} at a time, if they do not slow each other down.",
        highlight=False,
    )
    if len(running.study.recipes) > 1:
        for line in running.outlook().lines():
            console.print(line, highlight=False, soft_wrap=True)


def minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def follow(running: "polytask.StudyRunning", console: Console) -> None:
    """Runs the study and shows its progress: a progress bar on a terminal, lines elsewhere."""
    total = sum(cell.steps for cell in running.plan.cells)
    steps = {cell.key: cell.steps if cell.done else 0 for cell in running.plan.cells}
    before, started = sum(steps.values()), time.monotonic()
    done = len(running.plan.cells) - len(running.waiting)
    console.print(f"{len(running.plan.cells)} runs, {done} of them already done", highlight=False)
    columns: list[ProgressColumn] = [
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:.0f} %"),
    ]
    columns += [TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn()]
    with (
        Progress(*columns, console=console, disable=not console.is_terminal) as bar,
        closing(running.reports()) as reports,
    ):
        line = bar.add_task(f"{done}/{len(steps)} runs", total=total, completed=before)
        for report in reports:
            steps[report.cell.key] = report.step
            done += report.state == "done"
            bar.update(line, completed=sum(steps.values()), description=f"{done}/{len(steps)} runs")
            if report.state in ("done", "failed"):
                rate = (sum(steps.values()) - before) / (time.monotonic() - started)
                left = minutes((total - sum(steps.values())) / max(rate, 1e-9))
                bar.console.print(_line(report, done, len(steps), left), highlight=False, soft_wrap=True)


def _line(report: "polytask.CellReport", done: int, of: int, left: str) -> str:
    cell = report.cell
    if report.state == "failed":
        return f"FAILED {cell.variant}, seed {cell.seed}:\n{report.error}"
    return f"done {cell.variant}, seed {cell.seed} ({done}/{of}, about {left} left)"


def show(content: dict[str, Any], folder: Path, console: Console) -> None:
    for comparison in sorted(content["comparisons"], key=lambda c: c["claim"] == "undecided"):
        console.print(comparison["sentence"], highlight=False, soft_wrap=True)
    console.print(f"table:  {folder / 'study.md'}\nreport: {folder / 'report.html'}", highlight=False, soft_wrap=True)
