"""Starting and resuming a run: its folder and lock, what the machine decides, and whether it is still the same run.

with open_run(folder, recipe, FolderLock(folder.path), resume, allow_change) as start:
    prepared = prepare(start.recipe)
    start.check_data(prepared, origin)
    session = make_session(prepared, start.folder, start.device, checkpoint=start.checkpoint)
    start.write(prepared, origin)
"""

import json
import logging
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
    device_of,
    environment,
    keep_freed_memory,
    pick_device,
    pick_precision,
    reset_peak_memory,
    set_threads,
    start_warm_up,
    usable_cores,
)
from polytask.plugins.files import copy_plugins
from polytask.processes import ALONE, Processes, refuse_several
from polytask.recipe.reading import write_recipe
from polytask.recipe.records import Recipe, flat_fields
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
from polytask.runs.summary import Summary, summary_from
from polytask.training.checkpoint import step_of
from polytask.training.loop import Session
from polytask.training.state import CheckpointMismatch
from polytask.types import UserError

log = logging.getLogger(__name__)
COMPARED = ("polytask", "python", "torch", "tokenizers")
"""The versions that all processes of a run must share."""


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
    processes: Processes = ALONE
    """The processes that train the run. Only the first one reads and writes its folder."""

    def accept(self, what: str, changes: list[str]) -> None:
        """Refuses changes, unless `allow_change` was given."""
        if changes and not self.allow_change:
            raise refusal(self.folder, what, changes)
        self.changes += changes

    def check_data(self, prepared: Prepared, origin: Mapping[str, Any]) -> None:
        """Refuses to continue with other data or other starting weights. `origin` names the starting weights.

        Also refuses processes that do not all have the same data and starting weights.
        """
        with self.processes.one_error_for_all():
            if self.processes.is_main and (self.checkpoint is not None or self.finished is not None):
                self.accept("other data", data_changes(self.folder, prepared.tasks, origin))
        if self.processes.several:
            data = [own["sha256"] for splits in fingerprints(prepared.tasks).values() for own in splits.values()]
            versions = {name: version for name, version in environment(self.device).items() if name in COMPARED}
            self.processes.check_equal_fields("versions", versions)
            self.processes.check_equal("data or starting weights", json.dumps([data, origin], default=str))

    def check_processes(self, session: Session) -> None:
        """Refuses to continue with another number of processes if the result would depend on it."""
        before, now = session.processes_before, self.processes.count
        if before is None or before == now:
            return
        change = f"processes: was {before}, is {now}"
        if session.model.has_dropout:  # each process draws its own dropout
            with self.processes.one_error_for_all():
                self.accept("another number of processes, which draw other dropout", [change])
        elif self.processes.is_main:
            log.warning("%s: %s; without dropout, only the rounding of sums differs", self.folder.path, change)

    def write(self, prepared: Prepared, origin: Mapping[str, Any]) -> None:
        """Writes the first files of a new run, or what has changed in a resumed one."""
        if self.finished is not None or not self.processes.is_main:
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
        count = {"processes": self.processes.count} if self.processes.several else {}
        content = {**environment(self.device), **count, **origin, "started": started, "data": data}
        write_atomically(self.folder.environment, json.dumps(content, indent=1, ensure_ascii=False))

    def _write_recipe(self, prepared: Prepared) -> None:
        """Writes the recipe, and copies of its plug-ins and of data that was in memory, which it names."""
        copy_data(self.recipe, self.folder)
        copies = copy_plugins(prepared.plugins, self.folder.path)
        names = tuple(str(copy.relative_to(self.folder.path)) for copy in copies)
        write_recipe(replace(with_own_data(self.recipe, self.folder), plugins=names), self.folder.recipe)


@contextmanager
def open_run(
    folder: RunFolder,
    recipe: Recipe,
    lock: FolderLock,
    resume: bool = False,
    allow_change: bool = False,
    processes: Processes = ALONE,
) -> Iterator[Start]:
    """Checks the folder and decides where the run starts. Unlocks the folder if the block fails."""
    if not processes.several:
        refuse_several("this command")
    start = Start(folder, recipe, torch.device("cpu"), lock, resume, allow_change, processes=processes)
    try:
        with processes.one_error_for_all():
            if not processes.is_main:
                pass
            elif resume:
                _resume(start)
            else:
                check_free(folder)
                start.recipe, start.device = on_this_machine(recipe, processes=processes)
        if processes.several:
            _follow_main(start)
        yield start
    except CheckpointMismatch as error:
        start.lock.release()
        raise _explained(start, error) from error
    except BaseException:
        start.lock.release()
        raise


def _resume(start: Start) -> None:
    folder = start.folder
    check_target(folder.path, folder=True)
    if not folder.path.exists():
        raise UserError(f"{folder.path}: there is no run to resume; leave out --resume to start one")
    start.lock.acquire()
    recipe, threads = as_started(folder, start.recipe)
    start.recipe, start.device = on_this_machine(recipe, threads, start.processes)
    changes = recipe_changes(folder, with_own_data(start.recipe, folder))
    start.finished = finished_for_good(folder, changes)
    max_drop_only = all(change.startswith("add.max_drop:") for change in changes)
    if start.recipe.add is not None and max_drop_only and not folder.model.path.exists():
        start.changes += changes  # a model that was refused may be allowed a larger drop without training again
    else:
        start.accept("another recipe", changes)
    if start.finished is None:
        start.checkpoint = find_checkpoint(folder, start.allow_change)


def _follow_main(start: Start) -> None:
    """Lets the other processes start as the first one does: with the same recipe, from the same checkpoint."""
    processes, decided = start.processes, None
    if processes.is_main:
        checkpoint = None if start.checkpoint is None else start.checkpoint.name
        finished = None if start.finished is None else start.finished.to_json()
        decided = json.dumps([start.recipe.train.precision, torch.get_num_threads(), checkpoint, finished])
    precision, threads, checkpoint, finished = json.loads(processes.text_from_main(decided))
    with processes.one_error_for_all():
        if not processes.is_main:
            settings = replace(start.recipe.train, precision=precision)
            start.recipe, start.device = on_this_machine(replace(start.recipe, train=settings), threads, processes)
            start.checkpoint = None if checkpoint is None else start.folder.checkpoints / checkpoint
            start.finished = None if finished is None else summary_from(finished, "the summary of process 0")
    processes.check_equal("devices (train.device)", start.device.type)
    processes.check_equal_fields("settings in its recipe", flat_fields(start.recipe))


def check_free(folder: RunFolder) -> None:
    """A new run's folder must be empty, apart from its lock and the data that was collected for it."""
    check_target(folder.path, folder=True)
    allowed = (folder.texts, folder.data, folder.lock)
    if folder.path.exists() and any(entry not in allowed for entry in folder.path.iterdir()):
        raise UserError(
            f"{folder.path}: the folder already contains a run; pass --resume to continue it, or --run DIR for another "
            "folder"
        )


def on_this_machine(
    recipe: Recipe, threads: int | None = None, processes: Processes = ALONE
) -> tuple[Recipe, torch.device]:
    """Decides what the recipe leaves to the machine: device, precision and CPU threads.

    Several processes on a machine have a GPU each, or an equal share of its cores.
    """
    settings = recipe.train
    device = pick_device(settings.device)
    if processes.several:
        device = device_of(device, processes.local_rank)
        threads = threads or max(1, usable_cores() // processes.local_count)
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
