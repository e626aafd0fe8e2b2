"""Going on with a run that was stopped: from which checkpoint, and whether it is still the same run.

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
from polytask.recipe.reading import read_recipe
from polytask.recipe.records import Recipe, flat_fields
from polytask.tasks.task import Task
from polytask.training.checkpoint import Found, newest_good, set_aside
from polytask.types import UserError

RECIPE = "recipe.yaml"
ENVIRONMENT = "environment.json"
log = logging.getLogger(__name__)


def checkpoint_of(run: Path, allow_change: bool = False) -> Path | None:
    """The newest checkpoint that is whole; None: the run was stopped before its first one.

    Says which ones it passed over and why. The folder must be this process's own.
    """
    checkpoints = run / "checkpoints"
    for place in (run, checkpoints):
        clear_leftovers(place)
    found = newest_good(checkpoints)
    if found.path is None and found.damaged:
        found = _without_best(checkpoints, found, allow_change)
    if found.path is None and (run / "summary.json").exists():
        raise UserError(
            f"{run}: the run has finished, and its checkpoints were removed: there is nothing to go on from"
        )
    for path, why in found.damaged.items():
        log.warning("%s is damaged and passed over: %s", path.name, why)
    if found.damaged or found.path is None:
        log.warning("%s: going on from %s", run, found.path.name if found.path else "the beginning: no checkpoint yet")
    set_aside(found.damaged)
    return found.path


def _without_best(checkpoints: Path, found: Found, allow_change: bool) -> Found:
    """Of checkpoints that are whole themselves, while the best models they need are not."""
    alone = newest_good(checkpoints, alone=True)
    if alone.path is not None and allow_change:
        return alone
    reasons = "".join(f"\n  {path.name}: {why}" for path, why in found.damaged.items())
    way_out = "start the run again in another folder (--run DIR)"
    if alone.path is not None:
        way_out = (
            f"go on from {alone.path.name} without the best models that are damaged by --allow-change, or {way_out}"
        )
    raise UserError(f"{checkpoints}: no checkpoint is whole:{reasons}\n{way_out}")


# --- what the machine decided -----------------------------------------------------------------------------------------
def as_started(run: Path, recipe: Recipe) -> tuple[Recipe, int | None]:
    """The recipe with the precision that the run was started with, if it leaves that open, and the run's CPU threads.

    Both change the last bits of a sum, so a resumed run does not choose anew. None: no usable number is known.
    """
    if recipe.train.precision == "auto" and (run / RECIPE).exists():
        precision = read_recipe(run / RECIPE).train.precision
        recipe = replace(recipe, train=replace(recipe.train, precision=precision))
    threads = read_environment(run).get("threads") if (run / ENVIRONMENT).exists() else None
    return recipe, threads if isinstance(threads, int) and 1 <= threads <= usable_cores() else None


# --- whether it is the same run ---------------------------------------------------------------------------------------
def recipe_changes(run: Path, recipe: Recipe) -> list[str]:
    """The fields in which a recipe differs from the one the run was started with."""
    if not (run / RECIPE).exists():
        return []
    then, now = flat_fields(read_recipe(run / RECIPE)), flat_fields(recipe)
    names = dict.fromkeys([*then, *now])
    return [
        f"{name}: {_shown(then, name)} then, {_shown(now, name)} now"
        for name in names
        if _plain(then.get(name)) != _plain(now.get(name)) and not _is_old_default(name, then.get(name), now.get(name))
    ]


def _is_old_default(name: str, then: Any, now: Any) -> bool:
    """Runs of versions that did not look for a file's encoding say utf-8, which is what is found for their files."""
    return name.startswith("tasks.") and name.endswith(".encoding") and (then, now) == ("utf-8", None)


def data_changes(run: Path, tasks: Mapping[str, Task], encoder: str | None) -> list[str]:
    """The files that are not what they were when the run was started."""
    about = read_environment(run)
    found = []
    if encoder is not None and about.get("encoder_sha256", encoder) != encoder:
        found.append("encoder: its weights are not those of then")
    for task, splits in fingerprints(tasks).items():
        for split, now in splits.items():
            then = _field(_field(_field(about, "data"), task), split)
            if then is not None and _field(then, "sha256") != now["sha256"]:
                rows = _field(then, "rows")
                found.append(f"tasks.{task}.{split}: {now['source']}: {rows} rows then, {now['rows']} now")
    return found


def _field(content: Any, key: str) -> Any:
    """A field of what may be no mapping, in a file that was damaged."""
    return content.get(key) if isinstance(content, Mapping) else None


def refusal(run: Path, what: str, changes: Iterable[str]) -> UserError:
    listed = "".join(f"\n  {change}" for change in changes)
    return UserError(
        f"{run}: the run was started with {what}:{listed}\nGo on with what it was started with, start another run "
        "(--run DIR), or let the change in by --allow-change"
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


def note_changes(run: Path, step: int, changes: Iterable[str], tasks: Mapping[str, Task]) -> None:
    """Writes down that a run went on with something else than it was started with, and what its data is now."""
    about = read_environment(run)
    before = about.get("changes")
    noted = [*(before if isinstance(before, list) else ()), {"after_step": step, "changes": list(changes)}]
    content = {**about, "data": fingerprints(tasks), "changes": noted}
    write_atomically(run / ENVIRONMENT, json.dumps(content, indent=1, ensure_ascii=False))


def read_environment(run: Path) -> dict[str, Any]:
    """What the run wrote of where it was started; nothing, and a warning, where that cannot be read."""
    try:
        return read_json(run / ENVIRONMENT)
    except UserError as error:
        log.warning("%s: whether the data is still the same cannot be checked", error)
        return {}


def _plain(value: Any) -> str:
    """As text, by which 2e-3 and 0.002 are the same, and true and 1 are not."""
    try:
        return repr(value) if isinstance(value, bool) else repr(float(value))
    except (TypeError, ValueError):
        return repr(value)


def _shown(fields: Mapping[str, Any], name: str) -> str:
    return json.dumps(fields[name], ensure_ascii=False) if name in fields else "nothing"
