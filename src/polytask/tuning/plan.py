"""What is tuned: a recipe, the fields to vary and the rows of the search; and the run of each choice of settings."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from polytask.disk.atomic import write_atomically
from polytask.disk.json_files import read_json
from polytask.disk.writable import check_target
from polytask.evaluation.comparison.records import MEAN
from polytask.evaluation.metrics import check_metric, chosen_metric
from polytask.kinds.table import KINDS
from polytask.recipe.reading import recipe_from, with_value
from polytask.recipe.records import SELECT_WORDS, Recipe, recipe_to_mapping
from polytask.runs.prepare import prepare
from polytask.studies.cells import Cell, cell_key, dev_tokens
from polytask.studies.results import values_json
from polytask.tuning.fields import Field, values_of
from polytask.tuning.rows import HoldBack, divide_rows
from polytask.tuning.trials import DATABASE
from polytask.types import UserError

RUNGS = (1, 3, 9)
"""The lengths of a search's runs, in ninths of the recipe's steps."""
START = "recipe"
"""The name of the recipe itself among the finalists."""
PLAN = "tune-plan.json"


@dataclass(frozen=True)
class TunePlan:
    """A recipe to tune."""

    content: Mapping[str, Any]
    """The recipe as a file contains it, with absolute paths."""
    recipe: Recipe
    fields: tuple[Field, ...]
    hold_back: HoldBack
    folder: Path
    search_rows: Mapping[str, Any]
    """Recipe fields of the search's runs."""
    final_rows: Mapping[str, Any]
    """Recipe fields of the final runs: the held-back rows are their test split."""

    @property
    def start(self) -> dict[str, Any]:
        """The recipe's own value of each field."""
        return values_of(self.recipe, self.fields)

    @property
    def tasks(self) -> list[str]:
        """The tasks whose scores count: those that are trained, or that `train.select` names."""
        return tuned_tasks(self.recipe)

    @property
    def view(self) -> str:
        """The score that is tuned: the task that `train.select` names, the mean of the tasks, or the only task."""
        selected = _selected(self.recipe)
        if selected in self.tasks:
            return selected
        return MEAN if len(self.tasks) > 1 else self.tasks[0]

    @property
    def lower_is_better(self) -> bool:
        """Whether `score` is minus the metric. (In the mean of the tasks, each such metric has a minus sign.)"""
        task = self.recipe.tasks.get(self.view)
        return task is not None and not chosen_metric(task.metric, task.kind, "recipe").greater_is_better

    def score(self, summary: Mapping[str, Any]) -> float:
        """Returns the score of a run on the search's dev rows; minus the score where lower is better."""
        value = values_json(summary, self.tasks)[self.view]
        return -value if self.lower_is_better else value

    def settled(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the content of the recipe with these settings."""
        content = dict(self.content)
        for field, value in settings.items():
            content = with_value(content, field.split("."), value)
        return content

    def cells(self, variant: str, settings: Mapping[str, Any]) -> dict[int, Cell]:
        """Returns the run of each length of the search, by ninths of the recipe's steps."""
        recipe, ready = self._prepare({**settings, **self.search_rows})
        short = {ninths: shortened(recipe, ninths, ready.steps_per_epoch) for ninths in RUNGS}
        return {ninths: self._cell(variant, one, ready) for ninths, one in short.items()}

    def final_cells(self, variant: str, settings: Mapping[str, Any], seeds: range) -> list[Cell]:
        """Returns the run of each fresh seed, for all steps."""
        recipe, ready = self._prepare({**settings, **self.final_rows})
        return [self._cell(variant, replace(recipe, seed=seed), ready) for seed in seeds]

    def num_dev_tokens(self) -> int:
        return dev_tokens(self._prepare(self.search_rows)[1])

    def _prepare(self, settings: Mapping[str, Any]) -> tuple[Recipe, Any]:
        recipe = recipe_from(self.settled(settings), where="recipe")
        return recipe, prepare(recipe)

    def _cell(self, variant: str, recipe: Recipe, ready: Any) -> Cell:
        key = cell_key(recipe, ready)
        steps = recipe.train.epochs * (recipe.train.steps_per_epoch or ready.steps_per_epoch)
        return Cell(variant, recipe.seed, recipe, key, self.folder / "cells" / key, steps)


def tuned_tasks(recipe: Recipe) -> list[str]:
    """Returns the tasks whose scores count: all with labels that are trained, or that `train.select` names."""
    tasks = recipe.tasks.values()
    return [
        task.name
        for task in tasks
        if KINDS[task.kind].has_predictions and (task.trained or task.name == _selected(recipe))
    ]


def _selected(recipe: Recipe) -> str | None:
    """Returns the task that `train.select` names."""
    word = recipe.train.select.partition(".")[0]
    return None if word in SELECT_WORDS else word


def shortened(recipe: Recipe, ninths: int, steps_per_epoch: int) -> Recipe:
    """Returns the recipe with fewer steps: as many epochs as the share allows, at least one.

    The whole schedule of the learning rate fits into them: a warm-up in steps becomes the same fraction.
    """
    train = recipe.train
    steps = train.epochs * steps_per_epoch
    if ninths == RUNGS[-1]:
        return recipe
    epochs = max(1, round(train.epochs * ninths / RUNGS[-1]))
    per_epoch = math.ceil(steps * ninths / RUNGS[-1] / epochs)
    warmup = train.warmup if train.warmup < 1 else min(train.warmup / steps, 0.999)
    return replace(recipe, train=replace(train, epochs=epochs, steps_per_epoch=per_epoch, warmup=warmup))


def make_plan(
    content: Mapping[str, Any], recipe: Recipe, fields: tuple[Field, ...], hold_back: HoldBack, folder: Path
) -> TunePlan:
    """Checks that the recipe can be tuned in this folder, and divides its dev rows."""
    tasks = tuned_tasks(recipe)
    if not tasks:
        raise UserError("tune: all trained tasks are plain text, which has no predictions to compare")
    for name in tasks:
        check_metric(recipe.tasks[name].metric, recipe.tasks[name].kind, f"recipe: tasks.{name}.metric")
    prepare(recipe)  # raises all errors in the data
    _check_folder(folder, _identity(recipe, fields, hold_back))
    search_rows, final_rows = divide_rows(recipe, hold_back, folder / "data")
    return TunePlan(content, recipe, fields, hold_back, folder, search_rows, final_rows)


def _identity(recipe: Recipe, fields: tuple[Field, ...], hold_back: HoldBack) -> dict[str, Any]:
    return {
        "recipe": recipe_to_mapping(recipe),
        "fields": {field.field: str(field) for field in fields},
        "hold_back": hold_back,
    }


def _check_folder(folder: Path, identity: Mapping[str, Any]) -> None:
    """Writes what the folder is for, or refuses a folder of something else.

    A tuning of which no run has started, because its budget was too small for example, is replaced.
    """
    check_target(folder, folder=True)
    path, wanted = folder / PLAN, json.loads(json.dumps(identity))
    if not path.exists() and folder.exists() and any(folder.iterdir()):
        raise UserError(f"{folder}: the folder holds other files; pass --folder DIR to choose another one")
    other = read_json(path) if path.exists() else {}
    names = {"recipe": "recipe", "fields": "--vary", "hold_back": "--hold-back"}
    changed = [names[name] for name, value in wanted.items() if other.get(name) != value]
    if changed and any((folder / name).exists() for name in ("cells", "best.yaml")):
        raise UserError(
            f"{folder}: the folder belongs to a tuning with another {' and another '.join(changed)}; pass --folder DIR "
            "to choose another one, or delete this one"
        )
    if changed:
        (folder / DATABASE).unlink(missing_ok=True)  # it has the times of the other recipe's steps
        write_atomically(path, json.dumps(wanted, indent=1, ensure_ascii=False))
