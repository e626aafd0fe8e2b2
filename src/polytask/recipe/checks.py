"""Checks of a recipe that types cannot express."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from polytask.kinds.options import MOST_OPTIONS
from polytask.methods import KIND, find_method
from polytask.recipe.records import SELECT_WORDS, Recipe
from polytask.recipe.sharing import check_shared_rows
from polytask.settings import ABSTAINING, MOST_TEXTS, AddSettings, MethodChoice, TaskSpec, TrainSettings, Windows
from polytask.types import KINDS_WITHOUT_LABEL, LabelKind, UserError, unknown

DEVICE = re.compile(r"auto|cpu|cuda(:[0-9]{1,3})?")
REQUIRED = {
    "kind": "classes, yes_no, score, multilabel, tokens, match, choice or text",
    "text": "the name of the column with the text, or a list of columns",
    "label": "the name of the column with the labels",
    "train": "the file with the training rows",
    "dev": "the file with the dev rows",
}
"""The fields that every task has, and what to write there."""


def check_blanks(tasks: Mapping[str, Mapping[str, Any]], where: str) -> None:
    """Raises one UserError that lists all required fields without a value, which `polytask init` may leave."""
    blank = [
        f"{where}: tasks.{name}.{field}: must have a value, found nothing; fill in {what}"
        for name, task in tasks.items()
        for field, what in REQUIRED.items()
        if field in task and task[field] is None and not _can_be_left_out(field, task)
    ]
    if blank:
        raise UserError("\n".join(blank))


def _can_be_left_out(field: str, task: Mapping[str, Any]) -> bool:
    return (field == "label" and task.get("kind") in KINDS_WITHOUT_LABEL) or (
        field == "train" and task.get("trained") is False
    )


WITHOUT_CLASSES = ("yes_no", "score", "match", "choice", "text")
"""The kinds whose labels are not names of classes."""
NOT_FOR_WORDS = {
    "tags": "tags of a column are an input of tasks with one label per text",
    "metrics": "functions of your own take one label per text, not one per word",
    "range": "it has no scores",
}
"""Fields of a task that kind tokens does not have, and why."""


def check_recipe(recipe: Recipe, where: str) -> None:
    """Raises a UserError that names the first field whose value does not fit the others."""
    parts = Path(recipe.name).parts
    if not parts or not recipe.name.isprintable() or {"..", "/"} & set(parts):
        raise UserError(f"{where}: name: must be the name of a folder inside runs/, found {recipe.name!r}")
    names = [regularizer.name for regularizer in recipe.regularizers]
    if len(set(names)) < len(names):
        raise UserError(f"{where}: regularizers: must be different, found {', '.join(names)}")
    for plugin in recipe.plugins:
        if not plugin.endswith(".py") or "\0" in plugin:
            raise UserError(f"{where}: plugins: must be Python files, whose names end in .py; found {plugin!r}")
    for task, runs in recipe.teachers.items():
        if task not in recipe.tasks:
            raise UserError(unknown(f"{where}: teachers", task, recipe.tasks, "task"))
        if recipe.tasks[task].kind in KINDS_WITHOUT_LABEL:
            raise UserError(
                f"{where}: teachers.{task}: a task of kind {recipe.tasks[task].kind} has no labels to distill"
            )
        if not recipe.tasks[task].trained:
            raise UserError(f"{where}: teachers.{task}: the task is not trained (tasks.{task}.trained: false)")
        if not runs:
            raise UserError(f"{where}: teachers.{task}: must be the folder of a run, or a list of them; found []")
    if not any(task.trained for task in recipe.tasks.values()):
        raise UserError(f"{where}: tasks: at least one task must be trained, found `trained: false` for all")
    if recipe.add is not None:
        _check_add(recipe.add, f"{where}: add")
    for name, spec in recipe.tasks.items():
        if spec.kind not in get_args(LabelKind) and not recipe.plugins:  # else it is checked when they are loaded
            find_method(KIND, spec.kind, f"{where}: tasks.{name}.kind")
        _check_task(spec, f"{where}: tasks.{name}")
        if spec.unlabelled is not None and not spec.trained:
            raise UserError(f"{where}: tasks.{name}.unlabelled: the task is not trained (tasks.{name}.trained: false)")
        if spec.unlabelled is not None and name not in recipe.teachers:
            raise UserError(
                f"{where}: tasks.{name}.unlabelled: needs a teacher, which labels the rows; set `teachers.{name}` to "
                "the folder of a finished run"
            )
        if spec.windows is not None:
            _check_windows(spec, spec.windows, recipe.max_length, f"{where}: tasks.{name}.windows")
        if spec.tags and recipe.word_tags is not None:
            raise UserError(
                f"{where}: tasks.{name}.tags: must be left out with word_tags.tagger, which tags all texts; found "
                f"{list(spec.tags)}"
            )
    check_shared_rows(recipe, where)
    _check_train(recipe, f"{where}: train")


def _check_train(recipe: Recipe, where: str) -> None:
    train = recipe.train
    if not DEVICE.fullmatch(train.device):
        raise UserError(f"{where}.device: must be auto, cpu, cuda or cuda:NUMBER, found {train.device!r}")
    if train.teacher_annealing and train.teacher_weight != TrainSettings.teacher_weight:
        raise UserError(
            f"{where}.teacher_weight: needs `teacher_annealing: false`: with annealing the weight decreases from 1 to "
            f"0; found {train.teacher_weight}"
        )
    selected = train.select.partition(".")[0]
    if train.select not in SELECT_WORDS and selected not in recipe.tasks:
        raise UserError(unknown(f"{where}.select", selected, [*SELECT_WORDS, *recipe.tasks], "task"))
    if train.batch_tokens is not None and train.batch_size != TrainSettings.batch_size:
        raise UserError(
            f"{where}.batch_tokens: cannot be combined with batch_size, which sets the number of examples; leave "
            f"batch_size out (or at {TrainSettings.batch_size}, its default), found {train.batch_size}"
        )
    pairs = [name for name, task in recipe.tasks.items() if task.kind == "match" and task.trained]
    if pairs and train.batch_size < 2 and train.batch_tokens is None:
        raise UserError(
            f"{where}.batch_size: must be at least 2 for task {pairs[0]} of kind match, which compares the pairs of a "
            f"batch; found {train.batch_size}"
        )
    if train.stop == "per_task" and train.patience is None:
        raise UserError(f"{where}.stop: per_task needs `patience`, the number of evaluations without improvement")
    if train.select == "last" and train.patience is not None and train.stop == "all":
        raise UserError(
            f"{where}.patience: must be left out with `select: last`, which has no best evaluation; found "
            f"{train.patience}"
        )


def _check_task(task: TaskSpec, where: str) -> None:
    if not 1 <= len(task.text) <= MOST_TEXTS:
        raise UserError(f"{where}.text: must be one column, or a list of up to {MOST_TEXTS}; found {len(task.text)}")
    _check_options(task, where)
    if len(task.tags) not in (0, len(task.text)):
        raise UserError(
            f"{where}.tags: must be one column for each text column ({len(task.text)}), found {list(task.tags)}"
        )
    if task.kind in KINDS_WITHOUT_LABEL:
        _check_without_label(task, where)
    _check_words(task, where)
    if task.range is not None and task.kind in ("classes", "yes_no", "multilabel", "choice"):
        raise UserError(
            f"{where}.range: must be left out for kind {task.kind}, found {list(task.range)}; only scores have a range"
        )
    if task.kind == "score":
        if task.range is not None and not task.range[0] < task.range[1]:
            raise UserError(f"{where}.range: the first value must be lower than the second, found {list(task.range)}")
        if task.range is None and not task.standardize:
            raise UserError(
                f"{where}.standardize: false needs `range`, the lowest and the highest score: without a range, scores "
                "are standardized by the training labels"
            )
    if task.classes is not None and task.kind == "tokens":
        if not task.classes or len(set(task.classes)) < len(task.classes):
            raise UserError(f"{where}.classes: must be different classes of spans, or tags; found {list(task.classes)}")
    elif task.classes is not None and task.kind in WITHOUT_CLASSES:
        raise UserError(
            f"{where}.classes: must be left out for kind {task.kind}, found {list(task.classes)}; only kinds classes, "
            "multilabel and tokens have classes"
        )
    elif task.classes is not None and len(set(task.classes)) < max(2, len(task.classes)):
        raise UserError(f"{where}.classes: must be two or more different names, found {list(task.classes)}")
    _check_labels(task, where)
    if task.abstain_below is not None and task.kind not in ABSTAINING:
        raise UserError(
            f"{where}.abstain_below: is only for kinds {', '.join(ABSTAINING)}; found "
            f"{task.abstain_below} for kind {task.kind}"
        )
    for reference in task.metrics:
        module, colon, function = reference.rpartition(":")
        if bool(colon) != bool(module) or not function.isidentifier():
            raise UserError(
                f"{where}.metrics: must be functions as module:function, or metrics that a plug-in registers; found "
                f"{reference!r}"
            )


def _check_options(task: TaskSpec, where: str) -> None:
    if task.kind != "choice":
        if task.options is not None:
            raise UserError(f"{where}.options: must be left out for kind {task.kind}, found {task.options!r}")
        return
    columns = task.option_columns
    if task.options is None or (not isinstance(task.options, str) and len(columns) < 2):
        raise UserError(
            f"{where}.options: must be the column with lists of options, or a list of two or more columns; found "
            f"{task.options!r}"
        )
    if len(set(task.input_columns)) < len(task.input_columns) or len(columns) > MOST_OPTIONS:
        raise UserError(
            f"{where}.options: must be at most {MOST_OPTIONS} different columns, without that of the text; found "
            f"{list(columns)!r:.200}"
        )
    if len(task.text) > 1:
        raise UserError(f"{where}.text: must be one column for kind choice, found {list(task.text)}")
    if task.tags:
        raise UserError(f"{where}.tags: must be left out for kind choice, found {_shown(task.tags)}")


def _check_words(task: TaskSpec, where: str) -> None:
    if task.kind != "tokens":
        if task.scheme is not None:
            raise UserError(f"{where}.scheme: must be left out for kind {task.kind}, found {task.scheme!r}")
        if task.format == "conll":
            raise UserError(
                f"{where}.format: conll files have words with tags, for kind tokens; found kind {task.kind}"
            )
        return
    if len(task.text) > 1:
        raise UserError(f"{where}.text: must be one column for kind tokens, found {len(task.text)}")
    if not isinstance(task.label, str):
        raise UserError(f"{where}.label: must be one column for kind tokens, found {list(task.label or ())}")
    for name, why in NOT_FOR_WORDS.items():
        if (value := getattr(task, name)) not in (None, ()):
            raise UserError(f"{where}.{name}: must be left out for kind tokens: {why}; found {_shown(value)}")


def _check_labels(task: TaskSpec, where: str) -> None:
    if isinstance(task.label, tuple):
        if task.kind != "multilabel":
            raise UserError(f"{where}.label: must be one column for kind {task.kind}, found {list(task.label)}")
        if len(set(task.label)) < max(2, len(task.label)):
            raise UserError(f"{where}.label: must be two or more different columns, found {list(task.label)}")
        if task.classes is not None:
            raise UserError(f"{where}.classes: must be left out: the names of the label columns are the classes")
        if task.separator is not None:
            raise UserError(
                f"{where}.separator: must be left out: columns of 0 and 1 have no separator; found {task.separator!r}"
            )
    if task.kind == "multilabel":
        if task.separator is not None and not task.separator.strip(" "):
            raise UserError(f"{where}.separator: must be one or more characters such as |, found {task.separator!r}")
        return
    for name, default in (("separator", None), ("thresholds", "tuned")):
        if (value := getattr(task, name)) != default:
            raise UserError(f"{where}.{name}: must be left out for kind {task.kind}, found {value!r}")


def _check_windows(task: TaskSpec, windows: Windows, max_length: int, where: str) -> None:
    if task.kind == "text":
        raise UserError(f"{where}: must be left out for kind text, which has no output for a whole text")
    if task.kind == "tokens":
        raise UserError(
            f"{where}: must be left out for kind tokens, which always reads long texts in windows; set "
            "`head: {name: tags, stride: 64}` to choose their stride"
        )
    if windows.stride is not None and windows.stride > max_length - 2:
        raise UserError(
            f"{where}.stride: must be at most {max_length - 2} (max_length without the two special tokens), or the "
            f"tokens between two windows would be left out; found {windows.stride}"
        )


def _check_add(add: AddSettings, where: str) -> None:
    if add.distill and add.guarantee == "frozen":
        raise UserError(f"{where}.distill: needs `guarantee: measured`: with a frozen encoder nothing is forgotten")


def _check_without_label(task: TaskSpec, where: str) -> None:
    if len(task.text) != (2 if task.kind == "match" else 1):
        columns = "two columns" if task.kind == "match" else "one column"
        raise UserError(f"{where}.text: must be {columns} for kind {task.kind}, found {len(task.text)}")
    for name in ("label", "range", "loss", "metrics", "unlabelled"):
        if (value := getattr(task, name)) not in (None, ()):
            raise UserError(
                f"{where}.{name}: must be left out for kind {task.kind}, which has no labels; found {_shown(value)}"
            )


def _shown(value: object) -> str:
    return value.name if isinstance(value, MethodChoice) else repr(list(value) if isinstance(value, tuple) else value)
