"""Runs cells in processes of their own, several at a time: one that fails or is killed harms no other.

Each is `polytask train` on the cell's recipe, so a study that was stopped resumes its cells where they were. Knows
processes and files; knows no statistics.
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
from polytask.studies.cells import Cell

State = Literal["started", "running", "done", "failed"]
SECONDS_BETWEEN_LOOKS = 0.3
SHOWN_LINES = 12
STOPPED = (130, 143)
"""Exit codes of a run that a signal ended, and that saved itself before."""


@dataclass(frozen=True)
class CellReport:
    """What became of a cell, or how far it is."""

    cell: Cell
    state: State
    step: int = 0
    error: str | None = None
    """The last lines of its log, if it failed."""


@dataclass
class _Process:
    cell: Cell
    process: subprocess.Popen[bytes]
    log: IO[bytes]
    seen: int = 0
    """How much of the run's metrics has been read."""
    step: int = 0


def run_cells(cells: Sequence[Cell], study: Path, workers: int) -> Iterator[CellReport]:
    """Runs what has not finished, `workers` at a time, and tells what happens. Closing the iterator stops them."""
    waiting = [cell for cell in cells if not cell.done]
    running: list[_Process] = []
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                running.append(_start(waiting.pop(0), study, workers))
                yield CellReport(running[-1].cell, "started")
            time.sleep(SECONDS_BETWEEN_LOOKS)
            for one in list(running):
                if one.process.poll() is not None:
                    running.remove(one)
                    yield _ended(one, study)
                elif _looked(one):
                    yield CellReport(one.cell, "running", one.step)
    finally:
        for one in running:
            one.process.terminate()
        for one in running:
            one.process.wait()
            one.log.close()


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


def _looked(one: _Process) -> bool:
    """Counts the steps the run has written since the last look; whether there were any."""
    try:
        with (one.cell.folder / "metrics.jsonl").open("rb") as file:
            if one.seen == 0:
                one.step = 0
            file.seek(one.seen)
            new = file.read()
    except OSError:
        return False
    whole = new[: new.rfind(b"\n") + 1]
    one.seen += len(whole)
    count = whole.count(b'"kind": "step"')
    one.step += count
    return count > 0


def _ended(one: _Process, study: Path) -> CellReport:
    one.log.close()
    if one.process.returncode == 0 and one.cell.done:
        # A finished run has its model; what it could have resumed from would fill a disk, a hundred runs over.
        shutil.rmtree(one.cell.folder / "checkpoints", ignore_errors=True)
        return CellReport(one.cell, "done", one.cell.steps)
    error = last_lines(Path(one.log.name))
    # Kept apart, so that what it left can be looked at and the next start of the study tries it anew.
    apart = study / "failed" / one.cell.key
    shutil.rmtree(apart, ignore_errors=True)
    apart.parent.mkdir(parents=True, exist_ok=True)
    # One that was stopped from outside stays where it is, and goes on.
    stopped = one.process.returncode < 0 or one.process.returncode in STOPPED
    if one.cell.folder.exists() and not stopped:
        one.cell.folder.rename(apart)
    else:
        apart.mkdir()
    shutil.copy(one.log.name, apart / "log.txt")
    if one.process.returncode < 0:
        error = f"killed by signal {-one.process.returncode}\n{error}"
    return CellReport(one.cell, "failed", one.step, error)


def last_lines(log: Path) -> str:
    text = log.read_text(encoding="utf-8", errors="replace")
    return "\n".join(text.strip().splitlines()[-SHOWN_LINES:])
