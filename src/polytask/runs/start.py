"""Starting and resuming a run: its folder and lock, what the machine decides, and whether it is still the same run.

with open_run(folder, recipe, FolderLock(folder.path), resume, allow_change) as start:
    prepared = prepare(start.recipe)
    start.check_data(prepared, origin)
    session = make_session(prepared, start.folder, start.device, checkpoint=start.checkpoint)
    start.write(prepared, origin)
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from polytask.disk.atomic import write_atomically
from polytask.disk.lock import FolderLock
from polytask.disk.writable import check_target, make_folder
from polytask.machine import (
    environment,
    keep_freed_memory,
    pick_device,
    pick_precision,
    reset_peak_memory,
    set_threads,
    start_warm_up,
)
from polytask.plugins.files import copy_plugins
from polytask.recipe.reading import write_recipe
from polytask.recipe.records import Recipe
from polytask.runs.folder import RunFolder
from polytask.runs.own_data import copy_data, with_own_data
from polytask.runs.prepare import Prepared
from polytask.runs.resume import (
    as_started,
    data_changes,
    find_checkpoint,
    fingerprints,
    finished_for_good,
    note_changes,
    recipe_changes,
    refusal,
)
from polytask.runs.summary import Summary
from polytask.training.checkpoint import step_of
from polytask.training.state import CheckpointMismatch
from polytask.types import UserError


@dataclass
class Start:
    """A run that is about to train, or to continue."""

    folder: RunFolder
    recipe: Recipe
    """The recipe with everything decided that it leaves to the machine."""
    device: torch.device
    lock: FolderLock
    """Of the folder, from the moment at which the folder exists."""
    resume: bool
    allow_change: bool
    checkpoint: Path | None = None
    """Where it continues; None: at the beginning."""
    finished: Summary | None = None
    """Set if the run has finished and its checkpoints were removed: there is nothing left to train."""
    changes: list[str] = field(default_factory=list)
    """What has changed since the run was started."""

    def accept(self, what: str, changes: list[str]) -> None:
        """Refuses changes, unless `allow_change` was given."""
        if changes and not self.allow_change:
            raise refusal(self.folder, what, changes)
        self.changes += changes

    def check_data(self, prepared: Prepared, origin: Mapping[str, Any]) -> None:
        """Refuses to continue with other data or other starting weights. `origin` names the starting weights."""
        if self.checkpoint is not None or self.finished is not None:
            self.accept("other data", data_changes(self.folder, prepared.tasks, origin))

    def write(self, prepared: Prepared, origin: Mapping[str, Any]) -> None:
        """Writes the first files of a new run, or what has changed in a resumed one."""
        if self.finished is not None:
            return
        if self.checkpoint is not None:
            if self.changes:
                self._write_recipe(prepared)
                at, methods = step_of(self.checkpoint), origin.get("methods", {})
                note_changes(self.folder, at, self.changes, prepared.tasks, methods)
            return
        make_folder(self.folder.path)
        self.lock.acquire()
        if not self.resume:
            check_free(self.folder)  # again: another process may have been faster
        self._write_recipe(prepared)
        started = datetime.now(UTC).isoformat(timespec="seconds")
        data = fingerprints(prepared.tasks)
        content = {**environment(self.device), **origin, "started": started, "data": data}
        write_atomically(self.folder.environment, json.dumps(content, indent=1, ensure_ascii=False))

    def _write_recipe(self, prepared: Prepared) -> None:
        """Writes the recipe, and copies of its plug-ins and of data that was in memory, which it names."""
        copy_data(self.recipe, self.folder)
        copies = copy_plugins(prepared.plugins, self.folder.path)
        names = tuple(str(copy.relative_to(self.folder.path)) for copy in copies)
        write_recipe(replace(with_own_data(self.recipe, self.folder), plugins=names), self.folder.recipe)


@contextmanager
def open_run(
    folder: RunFolder, recipe: Recipe, lock: FolderLock, resume: bool = False, allow_change: bool = False
) -> Iterator[Start]:
    """Checks the folder and decides where the run starts. Unlocks the folder if the block fails."""
    check_target(folder.path, folder=True)
    start = Start(folder, recipe, torch.device("cpu"), lock, resume, allow_change)
    try:
        if resume:
            _resume(start)
        else:
            check_free(folder)
            start.recipe, start.device = on_this_machine(recipe)
        yield start
    except CheckpointMismatch as error:
        start.lock.release()
        raise _explained(start, error) from error
    except BaseException:
        start.lock.release()
        raise


def _resume(start: Start) -> None:
    folder = start.folder
    if not folder.path.exists():
        raise UserError(f"{folder.path}: there is no run to resume; leave out --resume to start one")
    start.lock.acquire()
    recipe, threads = as_started(folder, start.recipe)
    start.recipe, start.device = on_this_machine(recipe, threads)
    changes = recipe_changes(folder, with_own_data(start.recipe, folder))
    start.finished = finished_for_good(folder, changes)
    max_drop_only = all(change.startswith("add.max_drop:") for change in changes)
    if start.recipe.add is not None and max_drop_only and not folder.model.path.exists():
        start.changes += changes  # a model that was refused may be allowed a larger drop without training again
    else:
        start.accept("another recipe", changes)
    if start.finished is None:
        start.checkpoint = find_checkpoint(folder, start.allow_change)


def check_free(folder: RunFolder) -> None:
    """A new run's folder must be empty, apart from its lock and the data that was collected for it."""
    check_target(folder.path, folder=True)
    allowed = (folder.texts, folder.data, folder.lock)
    if folder.path.exists() and any(entry not in allowed for entry in folder.path.iterdir()):
        raise UserError(
            f"{folder.path}: the folder already contains a run; pass --resume to continue it, or --run DIR for another "
            "folder"
        )


def on_this_machine(recipe: Recipe, threads: int | None = None) -> tuple[Recipe, torch.device]:
    """Decides what the recipe leaves to the machine: device, precision and CPU threads."""
    settings = recipe.train
    device = pick_device(settings.device)
    precision = pick_precision(settings.precision, device)
    set_threads(device, settings.threads or threads)
    start_warm_up(device)
    if device.type == "cpu":
        keep_freed_memory()
    reset_peak_memory(device)
    return replace(recipe, train=replace(settings, precision=precision)), device


def _explained(start: Start, error: CheckpointMismatch) -> Exception:
    """What to do about a checkpoint that does not fit the session; the error itself if nobody changed the recipe."""
    if start.changes:
        return UserError(f"{start.checkpoint}: does not fit the changed recipe: {error}")
    if not error.earlier_options:
        return error
    options = ", ".join(f"{name}: {json.dumps(value)}" for name, value in error.earlier_options.items())
    return UserError(
        f"{start.checkpoint}: its weights do not fit the model of the recipe. Earlier versions had no option for this "
        f"and meant `{options}`: if the run was started with one of them, add that to the adapter's options and pass "
        "--allow-change"
    )
