"""Checks of a recipe that a type cannot express. Knows no file and no method."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from polytask.recipe.records import CHOICES, Recipe
from polytask.types import AddSettings, TaskSpec, UserError, unknown

DEVICE = re.compile(r"auto|cpu|cuda(:[0-9]{1,3})?")
NEEDED = {
    "kind": "classes, yes_no, score or text",
    "text": "the name of the column with the text, or of two columns",
    "label": "the name of the column with the labels",
    "train": "the file with the training rows",
    "dev": "the file with the dev rows",
}
"""The fields that every task has, and what belongs there."""


def check_blanks(tasks: Mapping[str, Mapping[str, Any]], where: str) -> None:
    """Fields that `polytask init` left blank, all of them at once."""
    blank = [
        f"{where}: tasks.{name}.{field}: a value is needed, found nothing; fill in {what}"
        for name, task in tasks.items()
        for field, what in NEEDED.items()
        if field in task and task[field] is None and (field, task.get("kind")) != ("label", "text")
    ]
    if blank:
        raise UserError("\n".join(blank))


def check_recipe(recipe: Recipe, where: str) -> None:
    t = recipe.train
    parts = Path(recipe.name).parts
    if not parts or not recipe.name.isprintable() or {"..", "/"} & set(parts):
        raise UserError(f"{where}: name: the name of a folder inside runs/ is needed, found {recipe.name!r}")
    if not DEVICE.fullmatch(t.device):
        raise UserError(f"{where}: train.device: must be auto, cpu, cuda or cuda:NUMBER, found {t.device!r}")
    names = [regularizer.name for regularizer in recipe.regularizers]
    if len(set(names)) < len(names):
        raise UserError(f"{where}: regularizers: each can be there once, found {', '.join(names)}")
    for taught in recipe.teachers:
        if taught not in recipe.tasks:
            raise UserError(unknown(f"{where}: teachers", taught, recipe.tasks, "task"))
        if recipe.tasks[taught].kind == "text":
            raise UserError(f"{where}: teachers.{taught}: a task of plain text has no answers to be taught")
    if recipe.add is not None:
        _check_add(recipe.add, f"{where}: add")
    for name, task in recipe.tasks.items():
        _check_task(task, f"{where}: tasks.{name}")
    chosen = t.select.partition(".")[0]
    if t.select not in CHOICES and chosen not in recipe.tasks:
        raise UserError(unknown(f"{where}: train.select", chosen, [*CHOICES, *recipe.tasks], "task"))
    if t.select == "last" and t.patience is not None:
        raise UserError(f"{where}: train.patience: select: last has no best evaluation to wait for, found {t.patience}")


def _check_task(task: TaskSpec, where: str) -> None:
    if len(task.text) not in (1, 2):
        raise UserError(f"{where}.text: one column, or two for a pair, found {len(task.text)}")
    if task.kind == "text":
        _check_plain_text(task, where)
    if task.kind == "score":
        if task.range is None:
            raise UserError(f"{where}.range: a score needs its lowest and highest value, as `range: [0, 5]`")
        if not task.range[0] < task.range[1]:
            raise UserError(f"{where}.range: the first value must be the lower one, found {list(task.range)}")
    if task.classes is not None and (task.kind != "classes" or len(set(task.classes)) < max(2, len(task.classes))):
        raise UserError(
            f"{where}.classes: two or more different names, for kind classes only, found {list(task.classes)}"
        )
    for reference in task.metrics:
        module, _, function = reference.rpartition(":")
        if not module or not function.isidentifier():
            raise UserError(f"{where}.metrics: a function is given as module:function, found {reference!r}")


def _check_add(add: AddSettings, where: str) -> None:
    if add.distill and add.guarantee == "frozen":
        raise UserError(f"{where}.distill: needs `guarantee: measured`: a frozen encoder cannot forget")


def _check_plain_text(task: TaskSpec, where: str) -> None:
    if task.is_pair:
        raise UserError(f"{where}.text: kind text takes one column, found {len(task.text)}")
    for name in ("label", "range", "loss", "metrics"):
        if (value := getattr(task, name)) not in (None, ()):
            raise UserError(f"{where}.{name}: kind text has no labels, found {value!r}")


# --- files ------------------------------------------------------------------------------------------------------------
