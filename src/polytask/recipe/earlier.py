"""Recipes that runs of earlier versions wrote: fields that did not exist have the value that the run was trained with.

The recipe in a run's folder names every field that its version had. A field that it lacks must not take today's
default, or a resumed run would continue with another loss.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from polytask.recipe.records import Recipe

TRAIN: dict[str, Any] = {"loss_scale": "none", "calibrate": False}
TASK: dict[str, Any] = {"standardize": False}
WRITTEN_WITH = "environment.json"
"""The file that is in the folder of every run, next to its recipe."""


def is_of_run(path: Path) -> bool:
    """Whether a recipe file was written by a run."""
    return path.with_name(WRITTEN_WITH).is_file()


def with_earlier_values(content: Any) -> Any:
    """The content of a run's recipe with the fields that did not exist when it was written."""
    if not isinstance(content, Mapping):
        return content
    content = dict(content)
    if isinstance(content.get("train"), Mapping):
        content["train"] = {**TRAIN, **content["train"]}
    if isinstance(content.get("tasks"), Mapping):
        tasks = content["tasks"].items()
        content["tasks"] = {name: {**TASK, **task} if isinstance(task, Mapping) else task for name, task in tasks}
    return content


def as_written(recipe: Recipe, content: Any) -> Recipe:
    """The recipe, but with the earlier values of the fields that the content of a run's recipe lacks."""
    if not isinstance(content, Mapping):
        return recipe
    train, tasks = content.get("train"), content.get("tasks")
    if isinstance(train, Mapping):
        missing = {field: value for field, value in TRAIN.items() if field not in train}
        recipe = replace(recipe, train=replace(recipe.train, **missing))
    if isinstance(tasks, Mapping):
        specs = dict(recipe.tasks)
        for name in specs.keys() & tasks.keys():
            missing = {field: value for field, value in TASK.items() if field not in (tasks[name] or ())}
            specs[name] = replace(specs[name], **missing)
        recipe = replace(recipe, tasks=specs)
    return recipe
