"""Runs cells in worker processes, several at a time: one that fails or is killed does not affect the others.

A worker trains one cell after another as `polytask train` would, so that a stopped study resumes its cells, and pays
for imports, CUDA and the encoder once (cli/worker.py). A worker that has failed is replaced. Knows processes and files;
knows no statistics.
"""

import json
import os
import selectors
import shutil
import subprocess
from collections.abc import Generator, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from polytask.disk.atomic import write_atomically
from polytask.disk.writable import make_folder, open_in_place
from polytask.machine import python_module
from polytask.recipe.reading import write_recipe
from polytask.runs.folder import RunFolder
from polytask.studies.cells import Cell

State = Literal["started", "running", "done", "failed"]
POLL_SECONDS = 0.3
SHOWN_LINES = 12
ERROR = "error.txt"
STOPPED = (130, 143)
"""Exit codes of a run that a signal stopped after it saved a checkpoint."""


@dataclass(frozen=True)
class CellReport:
    """The state of a cell and its number of steps so far."""

    cell: Cell
    state: State
    step: int = 0
    error: str | None = None
    """The last lines of its log if it failed."""


def run_cells(cells: Iterable[Cell | None], study: Path, workers: int) -> Generator[CellReport]:
    """Runs the unfinished cells, `workers` at a time, and yields their reports. Closing the iterator stops them.

    A cell is taken from `cells` when a worker is free, so that a search can choose it by the results so far. None means
    that the next cell depends on those that are running.
    """
    waiting = (cell for cell in cells if cell is None or not cell.done)
    running: list[_Worker] = []
    idle: list[_Worker] = []
    ended = False
    try:
        while running or not ended:
            while len(running) < workers and not ended:
                try:
                    cell = next(waiting)
                except StopIteration:
                    ended = True
                    break
                if cell is None:
                    assert running, "nothing is running whose result could be waited for"
                    break
                running.append(_start(cell, study, idle, workers))
                yield CellReport(cell, "started")
            answered = _wait(running)
            for worker in list(running):
                if worker in answered:
                    running.remove(worker)
                    exit_code = worker.exit_code()
                    if exit_code == 0 and not _has_own_code(worker.cell):
                        idle.append(worker)
                    else:
                        worker.end()
                    yield _finish(worker, study, exit_code)
                elif worker.count_steps():
                    yield CellReport(worker.cell, "running", worker.step)
    finally:
        for worker in running + idle:
            worker.process.terminate()
        for worker in running + idle:
            worker.end()


def _wait(workers: "Sequence[_Worker]") -> "list[_Worker]":
    """Waits until workers have answered or ended, or for a moment; returns those workers."""
    with selectors.DefaultSelector() as selector:
        for worker in workers:
            selector.register(worker.answers, selectors.EVENT_READ, worker)
        return [key.data for key, _ in selector.select(POLL_SECONDS)]


def _has_own_code(cell: Cell) -> bool:
    """Whether a run calls the user's code, which may leave anything behind in its process."""
    return bool(cell.recipe.plugins) or any(task.metrics for task in cell.recipe.tasks.values())


class _Worker:
    """A worker process and the cell that it runs, or has run last."""

    def __init__(self, log: Path, workers: int) -> None:
        """`log` is that of its first cell, which also gets what goes wrong before the cell starts."""
        # Processes that share the cores must not each start a thread for every core.
        threads = str(max(1, (os.cpu_count() or 1) // workers))
        environment = {"OMP_NUM_THREADS": threads, "PYTHONUNBUFFERED": "1", **os.environ}
        with open_in_place(log, "ab") as stderr:
            self.process = subprocess.Popen(
                python_module("polytask.cli.worker"),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env=environment,
                bufsize=0,
            )
        assert self.process.stdout is not None
        self.answers: Any = self.process.stdout
        self.log = log

    def start(self, cell: Cell, arguments: list[str], log: Path) -> None:
        """Starts a cell; raises an OSError if the worker has died."""
        self.cell, self.log = cell, log
        self.bytes_read = 0
        """Bytes of the run's metrics.jsonl that have been read."""
        self.step = 0
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"arguments": arguments, "log": str(log)}).encode() + b"\n")

    def exit_code(self) -> int:
        """Returns the exit code of the cell: 0 if the worker has said so, else that of the worker, which has ended."""
        answer = self.answers.read(1000)
        return int(json.loads(answer)["exit_code"]) if answer else self.process.wait()

    def end(self) -> None:
        """Ends the process, which saves a checkpoint first if a run is training."""
        self.process.terminate()
        self.process.communicate()

    def count_steps(self) -> bool:
        """Counts the steps that the run has written since the last call; returns whether there were any."""
        try:
            with RunFolder(self.cell.folder).metrics.open("rb") as file:
                if self.bytes_read == 0:
                    self.step = 0
                file.seek(self.bytes_read)
                new = file.read()
        except OSError:
            return False
        complete = new[: new.rfind(b"\n") + 1]
        self.bytes_read += len(complete)
        count = complete.count(b'"kind": "step"')
        self.step += count
        return count > 0


def _start(cell: Cell, study: Path, idle: list[_Worker], workers: int) -> _Worker:
    """Starts the cell in an idle worker, or in a new one."""
    recipe, log = study / "cells" / f"{cell.key}.yaml", study / "logs" / f"{cell.key}.log"
    make_folder(log.parent)
    write_recipe(cell.recipe, recipe)
    arguments = ["train", str(recipe), "--run", str(cell.folder)]
    if cell.folder.exists():
        arguments.append("--resume")
    open_in_place(log, "wb").close()
    while idle:
        worker = idle.pop()
        try:
            worker.start(cell, arguments, log)
            return worker
        except BrokenPipeError:  # it was killed while it was idle
            worker.end()
    worker = _Worker(log, workers)
    with suppress(BrokenPipeError):  # it has died already; its answers say so
        worker.start(cell, arguments, log)
    return worker


def _finish(worker: _Worker, study: Path, exit_code: int) -> CellReport:
    """Tidies up after a run that has ended, and reports whether its cell is done or failed."""
    cell = worker.cell
    if exit_code == 0 and cell.done:
        return CellReport(cell, "done", cell.steps)
    error = last_lines(worker.log)
    if exit_code < 0:
        error = f"killed by signal {-exit_code}\n{error}"
    # A failed run is moved, so that its files can be inspected and the next start of the study tries it again.
    failed = study / "failed" / cell.key
    shutil.rmtree(failed, ignore_errors=True)
    failed.parent.mkdir(parents=True, exist_ok=True)
    # A run that was stopped from outside stays where it is, and resumes.
    stopped = exit_code < 0 or exit_code in STOPPED
    if cell.folder.exists() and not stopped:
        cell.folder.rename(failed)
    else:
        failed.mkdir()
    shutil.copy(worker.log, failed / "log.txt")
    write_atomically(failed / ERROR, error)
    return CellReport(cell, "failed", worker.step, error)


def error_of(cell: Cell, study: Path) -> str | None:
    """Returns why a cell has failed, now or in an earlier start of the study; None if it has not."""
    try:
        return (study / "failed" / cell.key / ERROR).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def last_lines(log: Path) -> str:
    text = log.read_text(encoding="utf-8", errors="replace")
    return "\n".join(text.strip().splitlines()[-SHOWN_LINES:])
