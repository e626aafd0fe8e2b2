"""Runs the cells of a study with an engine: one that fails or is killed does not affect the others.

Knows folders and the order of the cells; knows no statistics, and neither processes nor machines.
"""

import os
import shutil
from collections.abc import Generator, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from polytask.disk.atomic import write_atomically
from polytask.recipe.reading import write_recipe
from polytask.studies.cells import Cell, key_of_run
from polytask.studies.engine import Engine, Job, Progress, is_stopped
from polytask.studies.worker import last_lines

State = Literal["started", "running", "done", "failed"]
ERROR = "error.txt"
OTHER_INPUTS = (
    "the run had other data, encoder, teachers or plug-ins than the study was planned with: its files have changed "
    "since the command was started, or the machine that ran it has other files at these paths"
)


@dataclass(frozen=True)
class CellReport:
    """The state of a cell and its number of steps so far."""

    cell: Cell
    state: State
    step: int = 0
    error: str | None = None
    """The last lines of its log if it failed."""


def run_cells(cells: Iterable[Cell | None], study: Path, engine: Engine) -> Generator[CellReport]:
    """Runs the unfinished cells, as many at a time as the engine has workers, and yields their reports.

    Closing the iterator stops them, and closes the engine. A cell is taken from `cells` when a worker is free, so that
    a search can choose it by the results so far. None means that the next cell depends on those that are running.
    """
    waiting = (cell for cell in cells if cell is None or not cell.done)
    running: set[str] = set()
    ended = False
    try:
        while running or not ended:
            while len(running) < engine.workers and not ended:
                try:
                    cell = next(waiting)
                except StopIteration:
                    ended = True
                    break
                if cell is None:
                    assert running, "nothing is running whose result could be waited for"
                    break
                job = Job(cell, Path(os.path.abspath(study)))
                write_recipe(cell.recipe, job.recipe)
                running.add(cell.key)
                engine.start(job)
                yield CellReport(cell, "started")
            for progress in engine.wait() if running else ():
                if progress.exit_code is None:
                    yield CellReport(progress.job.cell, "running", progress.step)
                else:
                    running.discard(progress.job.cell.key)
                    yield _finish(progress, progress.exit_code, study)
    finally:
        engine.close()


def _finish(progress: Progress, exit_code: int, study: Path) -> CellReport:
    """Tidies up after a run that has ended, and reports whether its cell is done or failed."""
    cell, error = progress.job.cell, progress.error
    if exit_code == 0 and cell.done:
        if key_of_run(cell.recipe, cell.folder) == cell.key:
            return CellReport(cell, "done", cell.steps)
        error = OTHER_INPUTS
    if error is None:
        error = last_lines(progress.job.log)
        error = error if exit_code >= 0 else f"killed by signal {-exit_code}\n{error}"
    # A failed run is moved, so that its files can be inspected and the next start of the study tries it again.
    failed = study / "failed" / cell.key
    shutil.rmtree(failed, ignore_errors=True)
    failed.parent.mkdir(parents=True, exist_ok=True)
    # A run that was stopped from outside stays where it is, and resumes.
    if cell.folder.exists() and not is_stopped(exit_code):
        cell.folder.rename(failed)
    else:
        failed.mkdir()
    shutil.copy(progress.job.log, failed / "log.txt")
    write_atomically(failed / ERROR, error)
    return CellReport(cell, "failed", progress.step, error)


def error_of(cell: Cell, study: Path) -> str | None:
    """Returns why a cell has failed, now or in an earlier start of the study; None if it has not."""
    try:
        return (study / "failed" / cell.key / ERROR).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
