"""Runs each cell in a separate process, several at a time: one that fails or is killed does not affect the others.

Each process is `polytask train` on the cell's recipe, so that a stopped study resumes its cells. Knows processes and
files; knows no statistics.
"""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

from polytask.disk.writable import make_folder, open_in_place
from polytask.machine import python_module
from polytask.recipe.reading import write_recipe
from polytask.runs.folder import RunFolder
from polytask.studies.cells import Cell

State = Literal["started", "running", "done", "failed"]
POLL_SECONDS = 0.3
SHOWN_LINES = 12
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


@dataclass
class _Process:
    cell: Cell
    process: subprocess.Popen[bytes]
    log: IO[bytes]
    bytes_read: int = 0
    """Bytes of the run's metrics.jsonl that have been read."""
    step: int = 0


def run_cells(cells: Sequence[Cell], study: Path, workers: int) -> Iterator[CellReport]:
    """Runs the unfinished cells, `workers` at a time, and yields their reports. Closing the iterator stops them."""
    waiting = [cell for cell in cells if not cell.done]
    running: list[_Process] = []
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                running.append(_start(waiting.pop(0), study, workers))
                yield CellReport(running[-1].cell, "started")
            time.sleep(POLL_SECONDS)
            for child in list(running):
                if child.process.poll() is not None:
                    running.remove(child)
                    yield _finish(child, study)
                elif _count_steps(child):
                    yield CellReport(child.cell, "running", child.step)
    finally:
        for child in running:
            child.process.terminate()
        for child in running:
            child.process.wait()
            child.log.close()


def _start(cell: Cell, study: Path, workers: int) -> _Process:
    recipe, log = study / "cells" / f"{cell.key}.yaml", study / "logs" / f"{cell.key}.log"
    make_folder(log.parent)
    write_recipe(cell.recipe, recipe)
    command = [*python_module("polytask"), "train", str(recipe), "--run", str(cell.folder)]
    if cell.folder.exists():
        command.append("--resume")
    # Processes that share the cores must not each start a thread for every core.
    threads = str(max(1, (os.cpu_count() or 1) // workers))
    environment = {"OMP_NUM_THREADS": threads, "PYTHONUNBUFFERED": "1", **os.environ}
    file = open_in_place(log, "wb")
    return _Process(cell, subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, env=environment), file)


def _count_steps(child: _Process) -> bool:
    """Counts the steps that the run has written since the last call; returns whether there were any."""
    try:
        with RunFolder(child.cell.folder).metrics.open("rb") as file:
            if child.bytes_read == 0:
                child.step = 0
            file.seek(child.bytes_read)
            new = file.read()
    except OSError:
        return False
    complete = new[: new.rfind(b"\n") + 1]
    child.bytes_read += len(complete)
    count = complete.count(b'"kind": "step"')
    child.step += count
    return count > 0


def _finish(child: _Process, study: Path) -> CellReport:
    """Tidies up after a process that has ended, and reports whether its cell is done or failed."""
    child.log.close()
    if child.process.returncode == 0 and child.cell.done:
        return CellReport(child.cell, "done", child.cell.steps)
    error = last_lines(Path(child.log.name))
    # A failed run is moved, so that its files can be inspected and the next start of the study tries it again.
    failed = study / "failed" / child.cell.key
    shutil.rmtree(failed, ignore_errors=True)
    failed.parent.mkdir(parents=True, exist_ok=True)
    # A run that was stopped from outside stays where it is, and resumes.
    stopped = child.process.returncode < 0 or child.process.returncode in STOPPED
    if child.cell.folder.exists() and not stopped:
        child.cell.folder.rename(failed)
    else:
        failed.mkdir()
    shutil.copy(child.log.name, failed / "log.txt")
    if child.process.returncode < 0:
        error = f"killed by signal {-child.process.returncode}\n{error}"
    return CellReport(child.cell, "failed", child.step, error)


def last_lines(log: Path) -> str:
    text = log.read_text(encoding="utf-8", errors="replace")
    return "\n".join(text.strip().splitlines()[-SHOWN_LINES:])
