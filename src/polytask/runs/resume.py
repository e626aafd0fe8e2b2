"""Resuming a run that was stopped: from which checkpoint, and whether recipe and data are still the same.

Knows the files of a run's folder; trains nothing.
"""

import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from polytask.disk.atomic import write_atomically
from polytask.disk.hidden_folder import clear_leftovers
from polytask.disk.json_files import read_json
from polytask.machine import usable_cores
from polytask.recipe.earlier import as_written
from polytask.recipe.reading import read_content, read_recipe
from polytask.recipe.records import Recipe, flat_fields
from polytask.runs.folder import RunFolder
from polytask.runs.summary import Summary, read_summary
from polytask.tasks.task import Task
from polytask.training.checkpoint import Found, newest_good, set_aside
from polytask.types import UserError

log = logging.getLogger(__name__)


# --- where it continues -----------------------------------------------------------------------------------------------
def finished_for_good(run: RunFolder, changes: Iterable[str]) -> Summary | None:
    """The summary of a run that has finished and whose checkpoints were removed; None for any other run.

    Such a run cannot train on, so changes of its recipe are refused.
    """
    clear_leftovers(run.path)
    if any(run.checkpoints.glob("*")) or not run.summary.exists():
        return None
    try:
        summary = read_summary(run.summary)
    except UserError:
        return None
    if not (summary.finished and summary.saved and run.model.tasks.is_file()):
        return None
    listed = "".join(f"\n  {change}" for change in changes)
    if listed:
        raise UserError(
            f"{run.path}: the run has finished and its checkpoints were removed, so it cannot continue with another "
            f"recipe:{listed}\nStart another run (--run DIR). With --keep-checkpoints a finished run keeps its "
            "checkpoints"
        )
    log.warning("%s: the run has finished; its report is written again", run.path)
    return summary


def find_checkpoint(run: RunFolder, allow_change: bool = False) -> Path | None:
    """The newest whole checkpoint; None if the run was stopped before its first one.

    Logs which checkpoints are damaged and why. The folder must be locked.
    """
    for place in (run.path, run.checkpoints):
        clear_leftovers(place)
    found = newest_good(run.checkpoints)
    if found.path is None and found.damaged:
        found = _without_best(run.checkpoints, found, allow_change)
    if found.path is None and run.summary.exists():
        raise UserError(
            f"{run.path}: the run has finished, and its checkpoints were removed: there is nothing to resume; start "
            "another run (--run DIR)"
        )
    for path, why in found.damaged.items():
        log.warning("%s is damaged and ignored: %s", path.name, why)
    if found.damaged or found.path is None:
        first = found.path.name if found.path else "the beginning, because there is no checkpoint yet"
        log.warning("%s: resuming from %s", run.path, first)
    set_aside(found.damaged)
    return found.path


def _without_best(checkpoints: Path, found: Found, allow_change: bool) -> Found:
    """For checkpoints that are whole, but need best models that are damaged."""
    alone = newest_good(checkpoints, alone=True)
    if alone.path is not None and allow_change:
        return alone
    reasons = "".join(f"\n  {path.name}: {why}" for path, why in found.damaged.items())
    advice = "start another run (--run DIR)"
    if alone.path is not None:
        advice = f"pass --allow-change to resume from {alone.path.name} without the damaged best models, or {advice}"
    raise UserError(f"{checkpoints}: no checkpoint is whole:{reasons}\n{advice}")


# --- what the machine decided -----------------------------------------------------------------------------------------
def as_started(run: RunFolder, recipe: Recipe) -> tuple[Recipe, int | None]:
    """The recipe with what the run was started with and the recipe does not name; and the run's CPU threads.

    Precision and threads change the last bits of a sum, so a resumed run must not choose again. Fields that did not
    exist when the run was started keep the value that they had. None: no usable number of threads is known.
    """
    if run.recipe.exists():
        recipe = as_written(recipe, read_content(run.recipe))
        if recipe.train.precision == "auto":
            precision = read_recipe(run.recipe).train.precision
            recipe = replace(recipe, train=replace(recipe.train, precision=precision))
    threads = read_environment(run).get("threads") if run.environment.exists() else None
    return recipe, threads if isinstance(threads, int) and 1 <= threads <= usable_cores() else None


# --- whether it is the same run ---------------------------------------------------------------------------------------
def recipe_changes(run: RunFolder, recipe: Recipe) -> list[str]:
    """The fields in which a recipe differs from the one that the run was started with."""
    if not run.recipe.exists():
        return []
    then, now = (_with_names_of_plugins(flat_fields(one)) for one in (read_recipe(run.recipe), recipe))
    names = dict.fromkeys([*then, *now])
    return [
        f"{name}: was {_shown(then, name)}, is {_shown(now, name)}"
        for name in names
        if _plain(then.get(name)) != _plain(now.get(name)) and not _is_old_default(name, then.get(name), now.get(name))
    ]


def _with_names_of_plugins(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The run's recipe names its own copies; whether they have the same content is checked by `data_changes`."""
    return {**fields, "plugins": sorted({Path(file).name for file in fields["plugins"]})}


def _is_old_default(name: str, then: Any, now: Any) -> bool:
    """Versions that did not detect a file's encoding wrote utf-8, which is what is detected for their files."""
    return name.startswith("tasks.") and name.endswith(".encoding") and (then, now) == ("utf-8", None)


def data_changes(run: RunFolder, tasks: Mapping[str, Task], origin: Mapping[str, Any]) -> list[str]:
    """The files that have changed since the run was started: the starting weights, the plug-ins and the data."""
    then = read_environment(run)
    changes = []
    encoder = origin.get("encoder_sha256")
    if encoder is not None and then.get("encoder_sha256", encoder) != encoder:
        changes.append("encoder: its weights have changed")
    if "added_to" in origin and then.get("added_to_sha256") != origin["added_to_sha256"]:
        changes.append(f"add.run: {origin['added_to']}: its weights have changed")
    for teacher, weights in origin.get("teachers_sha256", {}).items():
        if _field(then.get("teachers_sha256"), teacher) not in (None, weights):
            changes.append(f"teachers: {teacher}: its weights have changed")
    for method, version in origin.get("methods", {}).items():
        if _field(then.get("methods"), method) not in (None, version):
            changes.append(f"plugins: {method}: its code has changed")
    for task, splits in fingerprints(tasks).items():
        for split, now in splits.items():
            before = _field(_field(_field(then, "data"), task), split)
            if before is not None and _field(before, "sha256") != now["sha256"]:
                rows = _field(before, "rows")
                changes.append(f"tasks.{task}.{split}: {now['source']}: had {rows} rows, has {now['rows']}")
    return changes


def _field(content: Any, key: str) -> Any:
    """A field of a value that is not a mapping if the file is damaged."""
    return content.get(key) if isinstance(content, Mapping) else None


def refusal(run: RunFolder, what: str, changes: Iterable[str]) -> UserError:
    listed = "".join(f"\n  {change}" for change in changes)
    return UserError(
        f"{run.path}: the run was started with {what}:{listed}\nUndo the change, start another run (--run DIR), or "
        "pass --allow-change to accept it"
    )


def fingerprints(tasks: Mapping[str, Task]) -> dict[str, Any]:
    """By task and split: the file, its SHA-256 and its rows."""
    return {
        name: {
            split: {"source": s.source, "sha256": s.fingerprint, "rows": len(s), "skipped": s.num_broken}
            for split, s in task.splits.items()
        }
        for name, task in tasks.items()
    }


def note_changes(
    run: RunFolder, step: int, changes: Iterable[str], tasks: Mapping[str, Task], methods: Mapping[str, str]
) -> None:
    """Writes to environment.json what changed at a step, and the fingerprints of data and methods from then on."""
    content = read_environment(run)
    before = content.get("changes")
    noted = [*(before if isinstance(before, list) else ()), {"after_step": step, "changes": list(changes)}]
    content = {**content, "data": fingerprints(tasks), "methods": dict(methods), "changes": noted}
    write_atomically(run.environment, json.dumps(content, indent=1, ensure_ascii=False))


def read_environment(run: RunFolder) -> dict[str, Any]:
    """The content of environment.json; empty, with a warning, if it cannot be read."""
    try:
        return read_json(run.environment)
    except UserError as error:
        log.warning("%s: cannot check whether the data is still the same", error)
        return {}


def _plain(value: Any) -> str:
    """As text, so that 2e-3 equals 0.002, and true does not equal 1."""
    try:
        return repr(value) if isinstance(value, bool) else repr(float(value))
    except (TypeError, ValueError):
        return repr(value)


def _shown(fields: Mapping[str, Any], name: str) -> str:
    return json.dumps(fields[name], ensure_ascii=False) if name in fields else "not set"
