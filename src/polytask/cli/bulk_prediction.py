"""Bulk prediction on the command line: `polytask predict --engine local` and `--engine ray`."""

from collections.abc import Sequence
from pathlib import Path

import polytask
from polytask.cli.console import plain_console

SHOWN = 5


def predict_in_bulk(
    folder: Path, sources: Sequence[str], target: str, settings: "polytask.BulkSettings"
) -> "polytask.PredictedFiles":
    """Predicts many files, with a progress bar if there is a terminal."""
    from rich.progress import (  # noqa: PLC0415  (not for every prediction)
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    running = polytask.start_predicting_files(folder, sources, target, settings)
    plan, console = running.plan, plain_console()
    shards, before = len(plan.shards), len(plan.shards) - len(running.missing)

    def say(line: str) -> None:
        console.print(line, highlight=False, soft_wrap=True)

    say(f"{plan.rows:,} rows of {count(len(plan.inputs), 'file')}: {count(shards, 'shard')}, {before:,} done before")
    columns = BarColumn(), MofNCompleteColumn(), TextColumn("shards"), TimeElapsedColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        line = bar.add_task("shards", total=shards, completed=before)
        for _ in running.reports():
            bar.advance(line)
    done = running.finish()
    say(f"{done.computed_rows:,} rows in {done.seconds:.1f} s ({done.rows_per_second:,.0f} rows/s): {target}")
    if done.attempts:
        names = ", ".join(list(done.attempts)[:SHOWN]) + (", ..." if len(done.attempts) > SHOWN else "")
        say(f"{count(len(done.attempts), 'shard')} took more than one attempt: {names}")
    return done


def count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
