"""The interface of engines, which run the cells of a study: in processes of this machine, or on a cluster.

The runner (runner.py) takes the cells, asks an engine to start as many as it has workers, and turns what the engine
says into reports. So the cache, the folders of failed cells and the page are the same whatever runs the cells.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from polytask.studies.cells import Cell

STOPPED = (130, 143)
"""Exit codes of a run that a signal stopped after it saved a checkpoint."""


@dataclass(frozen=True)
class Job:
    """A cell to run, and its files in the study's folder."""

    cell: Cell
    study: Path
    """The study's folder, as an absolute path."""

    @property
    def recipe(self) -> Path:
        return self.study / "cells" / f"{self.cell.key}.yaml"

    @property
    def folder(self) -> Path:
        return self.study / "cells" / self.cell.key

    @property
    def log(self) -> Path:
        return self.study / "logs" / f"{self.cell.key}.log"

    @property
    def own_code(self) -> bool:
        """Whether the run calls the user's code."""
        recipe = self.cell.recipe
        return bool(recipe.plugins) or any(task.metrics for task in recipe.tasks.values())


@dataclass(frozen=True)
class Progress:
    """How far a cell is."""

    job: Job
    step: int
    exit_code: int | None = None
    """None while the cell is running."""
    error: str | None = None
    """Why it has failed, if the engine knows more than the cell's log says."""


class Engine(Protocol):
    """Runs the cells of one study. `close` may be called at any time; no cell is started afterwards."""

    workers: int
    """How many cells run at a time."""

    def start(self, job: Job) -> None:
        """Starts a cell, or resumes it if its folder exists. Its recipe file has been written."""

    def wait(self) -> list[Progress]:
        """Waits until a running cell has ended, or for a moment; returns the news of all running cells.

        A cell that has ended has its folder and its log in the study's folder, and no process that writes to them.
        """

    def close(self) -> None:
        """Stops the running cells, which save checkpoints, and ends all processes."""


def is_stopped(exit_code: int) -> bool:
    """Whether a run was stopped from outside: it has not failed, and can be resumed."""
    return exit_code < 0 or exit_code in STOPPED
