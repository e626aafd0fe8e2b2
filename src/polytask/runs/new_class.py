"""A new class for a task of a finished run: the data and the recipe of the new run, and the larger head.

The task's old rows and those of the new class are written to new files, so that the new run's folder holds all rows
that the task was trained and scored on.
"""

import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from polytask import seeds
from polytask.disk.cache import cache_folder
from polytask.disk.records import convert, mapping
from polytask.kinds.names import class_name
from polytask.plugins.files import use_plugins
from polytask.recipe.in_memory import file_of, memory_folder
from polytask.recipe.reading import recipe_from, with_setting
from polytask.recipe.records import Recipe, recipe_to_mapping
from polytask.recipe.task_classes import DATA_FIELDS, Data
from polytask.runs.joining import SAME, OldRun, check_same_model, old_tasks, plugins_of_both, read_old_split
from polytask.runs.prepare import use_code
from polytask.settings import AddSettings, TaskSpec
from polytask.tasks.in_memory import Record, write_rows
from polytask.tasks.splitting import choose_dev
from polytask.tasks.task import Split, read_split
from polytask.types import Example, LabelSpace, UserError, unknown

KINDS = ("classes", "multilabel")
"""The kinds of tasks that can get a new class."""
HELD_BACK = 0.2
"""The share of the new rows that is held back for evaluation if there is no dev file."""
DEFAULTS: dict[str, dict[str, Any]] = {
    "frozen": {"optimizer": {"name": "adamw", "lr": 1e-2}, "train": {"epochs": 10}},
    "measured": {"optimizer": {"name": "adamw", "lr": 5e-5}, "train": {"epochs": 8, "head_lr": 1e-3}},
}
"""By guarantee: the fields of the recipe that differ from the usual defaults."""
WHERE = "recipe"


@dataclass(frozen=True)
class NewClass:
    """What the user wants: a class for a task of a finished run, and rows of it."""

    task: str
    name: str
    data: Data
    """Rows of the new class, and of old classes too if there are any."""
    dev: Data = None
    """Rows of the new class to evaluate on; None: some of `data` are held back."""


# --- the recipe -------------------------------------------------------------------------------------------------------
def join_class(old: OldRun, wanted: NewClass, settings: Sequence[str] = (), trust_plugins: bool = False) -> Recipe:
    """The recipe of the new run: the tasks of the old one, of which one has a new class at the end of its classes."""
    wanted = replace(wanted, name=check_new_class(old, wanted.task, wanted.name))
    guarantee = mapping(_with_settings({}, settings).get("add") or {}, f"{WHERE}: add").get("guarantee", "frozen")
    plain = recipe_to_mapping(old.recipe)
    content: dict[str, Any] = {
        "name": f"{old.recipe.name}-{_plain_letters(wanted.name) or 'class'}",
        **{field: plain[field] for field in SAME},
        "adapter": {"name": old.bundle.adapter.name, **old.bundle.adapter.options},
        **DEFAULTS.get(str(guarantee), {}),
        "tasks": old_tasks(old, plain),
        "add": {"run": str(old.folder), "task": wanted.task, "new_class": wanted.name},
    }
    fixed = content["add"]
    content = _with_settings(content, settings)
    content["plugins"] = plugins_of_both(content, old, WHERE)
    add: AddSettings = convert(content["add"], AddSettings, f"{WHERE}: add")
    for field, value in fixed.items():
        if getattr(add, field) != value:
            raise UserError(f"{WHERE}: add.{field}: must be {value}, found {getattr(add, field)!r}; leave it out")
    use_plugins(content["plugins"], trust_plugins)
    _check_task_settings(content["tasks"][wanted.task], plain["tasks"][wanted.task], f"{WHERE}: tasks.{wanted.task}")
    content["tasks"] = {**content["tasks"], wanted.task: content["tasks"][wanted.task] | _joined(old, wanted, add)}
    recipe = recipe_from(content, where=WHERE)
    use_code(recipe, trust_plugins)
    check_same_model(recipe, old, WHERE)
    return _only_new_row(recipe, old) if add.guarantee == "frozen" else recipe


def _plain_letters(name: str) -> str:
    """Returns a class's name as a part of a file name: letters without accents, digits, - and _."""
    bare = "".join(char for char in unicodedata.normalize("NFKD", name) if not unicodedata.combining(char))
    return re.sub("[^A-Za-z0-9_-]+", "-", bare).strip("-")


def _with_settings(content: dict[str, Any], settings: Iterable[str]) -> dict[str, Any]:
    for setting in settings:
        content = with_setting(content, setting)
    return content


def check_new_class(old: OldRun, task: str, name: str) -> str:
    """Returns the class's name as labels are compared; raises a UserError if the task cannot get such a class."""
    if task not in old.tasks:
        raise UserError(unknown(str(old.folder), task, old.tasks, "task"))
    spec, classes = old.recipe.tasks[task], old.bundle.labels[task].classes
    if spec.kind not in KINDS:
        raise UserError(
            f"{old.folder}: task {task} is of kind {spec.kind}, which cannot get a new class; only kinds "
            f"{' and '.join(KINDS)} can"
        )
    if not spec.trained:
        raise UserError(f"{old.folder}: task {task} is not trained (tasks.{task}.trained: false)")
    if spec.tags:
        raise UserError(f"{old.folder}: task {task} reads word tags from columns, which add-class does not support")
    name = class_name(name)
    if not name:
        raise UserError("add-class: the name of the new class is empty")
    if name in classes:
        raise UserError(f"{old.folder}: task {task} already has the class {name!r}; choose another name")
    same = [known for known in classes if known.casefold() == name.casefold()]
    if same:
        raise UserError(
            f"{old.folder}: task {task} has the class {same[0]!r}, which differs from {name!r} only in upper and lower "
            "case; choose another name, or correct the labels"
        )
    return name


def _check_task_settings(task: Any, before: Any, where: str) -> None:
    fixed = (*DATA_FIELDS, "kind", "text", "label", "classes", "rows", "format", "delimiter", "quoting", "encoding")
    for field in fixed:
        if field != "unlabelled" and task.get(field) != before[field]:
            raise UserError(f"{where}.{field}: cannot be changed; the new rows are those of --data and --dev")


def _only_new_row(recipe: Recipe, old: OldRun) -> Recipe:
    """The recipe of a run that must change nothing but the new class's row of the task's head."""
    assert recipe.add is not None
    why, others = "(add.guarantee: frozen)", [name for name in old.tasks if name != recipe.add.task]
    if recipe.train.norms:
        raise UserError(f"{WHERE}: train.norms: the encoder's layer norms must not change {why}")
    if recipe.train.select.partition(".")[0] in others:
        raise UserError(f"{WHERE}: train.select: the score of another task does not change {why}")
    for name in recipe.teachers:
        if name in others:
            raise UserError(f"{WHERE}: teachers.{name}: another task does not learn {why}")
    options = recipe.optimizer.options
    if options.get("weight_decay"):
        raise UserError(f"{WHERE}: optimizer.weight_decay: must be 0, so that the old classes' weights do not change")
    optimizer = replace(recipe.optimizer, options={**options, "weight_decay": 0.0})
    return replace(recipe, optimizer=optimizer, train=replace(recipe.train, parts="heads"))


# --- the data ---------------------------------------------------------------------------------------------------------
def _joined(old: OldRun, wanted: NewClass, add: AddSettings) -> dict[str, Any]:
    """The task's fields in the new recipe: its classes, and files with the old rows and the new ones."""
    spec = old.recipe.tasks[wanted.task]
    new = _grown_spec(old, wanted)
    data, dev = (_read_new(old, wanted, new, given) for given in (wanted.data, wanted.dev))
    assert data is not None
    train_rows, dev_rows = (list(data.examples()), list(dev.examples())) if dev else _hold_back(data, wanted.name)
    parts: dict[str, list[Example]] = {"train": train_rows, "dev": dev_rows, "test": []}
    files: dict[str, str | None] = {"unlabelled": None}
    for name, examples in parts.items():
        file: str | None = getattr(spec, name)
        earlier: list[Example] = []
        if file is not None and not (name == "train" and add.rehearse == 0):
            remedy = "; without it, set add.rehearse=0" if name == "train" else ""
            earlier = list(read_old_split(old, spec, name, remedy=remedy).examples())
        if name == "train" and add.rehearse is not None and add.rehearse < len(earlier):
            chosen = seeds.generator(0, "rehearse", wanted.task).choice(len(earlier), add.rehearse, replace=False)
            earlier = [earlier[i] for i in sorted(chosen.tolist())]
        rows = [_row(example, new) for example in (*earlier, *examples)]
        files[name] = str(write_rows(rows, memory_folder(), f"{wanted.task}-{name}")) if rows else None
    fields = {field: recipe_value(getattr(new, field)) for field in ("label", "classes", "separator")}
    # The task has files of its own now, in which all rows have a label: it shares its rows with no other task.
    left_out = ("rows", "share_rows", "format", "delimiter", "quoting", "encoding")
    return {**fields, **files, "blank_labels": "stop", **dict.fromkeys(left_out)}


def recipe_value(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _grown_spec(old: OldRun, wanted: NewClass) -> TaskSpec:
    spec, labels = old.recipe.tasks[wanted.task], old.bundle.labels[wanted.task]
    classes = (*labels.classes, wanted.name)
    if isinstance(spec.label, tuple):
        return replace(spec, label=classes)
    return replace(spec, classes=classes, separator=labels.separator or None)


def _read_new(old: OldRun, wanted: NewClass, spec: TaskSpec, given: Data) -> Split | None:
    """The user's rows; at least one must have the new class."""
    if given is None:
        return None
    columns = [*spec.text, *spec.label_columns]
    source = file_of(given, columns, f"{wanted.task}-new", "add-class: data")
    spec = replace(spec, train=source, rows=None, format=None, delimiter=None, quoting=None, encoding=None)
    classes = (*old.bundle.labels[wanted.task].classes, wanted.name)
    labels = replace(old.bundle.labels[wanted.task], classes=classes, thresholds=())
    split = read_split(spec, labels, source, old.bundle.tokenizer, cache_folder(), "train", old.bundle.tagger)
    if not any(has_class(example, wanted.name) for example in split.examples()):
        raise UserError(f"{source}: no row has the class {wanted.name!r} in column {spec.label!r}")
    return split


def has_class(example: Example, name: str) -> bool:
    return name in example.label if isinstance(example.label, tuple) else example.label == name


def _hold_back(split: Split, name: str) -> tuple[list[Example], list[Example]]:
    """Splits the new rows into training and dev rows; rows with the same text stay together."""
    examples = list(split.examples())
    labels = [example.label if isinstance(example.label, str) else has_class(example, name) for example in examples]
    in_dev = choose_dev([example.texts for example in examples], HELD_BACK, classes=labels).in_dev
    both = list(zip(examples, in_dev, strict=True))
    parts = [example for example, dev in both if not dev], [example for example, dev in both if dev]
    if not all(any(has_class(example, name) for example in part) for part in parts):
        count = sum(has_class(example, name) for example in examples)
        raise UserError(
            f"{split.source}: {count} rows of the class {name!r} are too few, or too similar, to hold back "
            f"{HELD_BACK:.0%} of them for evaluation; add rows, or pass --dev FILE"
        )
    return parts


def _row(example: Example, spec: TaskSpec) -> Record:
    row: dict[str, Any] = dict(zip(spec.text, example.texts, strict=True))
    if isinstance(spec.label, tuple):
        return row | {column: int(has_class(example, column)) for column in spec.label}
    assert spec.label is not None
    return row | {spec.label: list(example.label) if isinstance(example.label, tuple) else example.label}


def rows_without_class(labels: npt.NDArray[Any], space: LabelSpace) -> npt.NDArray[np.int64]:
    """The indices of the rows that do not have the last class."""
    last = labels == len(space.classes) - 1 if labels.ndim == 1 else labels[:, -1] > 0
    return np.flatnonzero(~last)


# --- the head ---------------------------------------------------------------------------------------------------------
@torch.no_grad()
def copy_weights(tensor: Tensor, old: Tensor, what: str) -> None:
    """Copies weights of the old model; a tensor with one more row gets the mean of the old rows as the new one.

    With classes, the new class then scores the mean of the old classes' scores, and with several classes per row its
    probability is low: before training it is predicted for no text for which an old class scores higher.
    """
    if tensor.shape == old.shape:
        tensor.copy_(old)
    elif tensor.ndim and tensor.shape == (len(old) + 1, *old.shape[1:]):
        tensor[:-1].copy_(old)
        tensor[-1].copy_(old.mean(0))
    else:
        raise UserError(
            f"{what} cannot get another class: its shape is {list(old.shape)}, and {list(tensor.shape)} with the class"
        )


def train_new_row_only(head: nn.Module, before: nn.Module) -> None:
    """Lets only the last row of the parameters learn that have one more row than in the old head."""
    sizes = {name: parameter.shape for name, parameter in before.named_parameters()}
    for name, parameter in head.named_parameters():
        if parameter.shape == sizes[name]:
            parameter.requires_grad_(False)
        else:
            parameter.register_hook(last_row)


def last_row(gradient: Tensor) -> Tensor:
    """Returns the gradient with zeros in all rows but the last."""
    only = torch.zeros_like(gradient)
    only[-1] = gradient[-1]
    return only
