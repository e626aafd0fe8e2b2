"""Replaces data in memory in a recipe's mapping with files, so that a recipe always consists of plain values."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from polytask.disk.cache import cache_folder
from polytask.kinds.names import class_name, is_empty
from polytask.recipe.records import check_task_name
from polytask.recipe.task_classes import DATA_FIELDS, TaskFields, Tokens, is_in_memory
from polytask.tasks.in_memory import Record, rows_of, write_rows
from polytask.tasks.reading import open_source
from polytask.tasks.sources.source import BrokenRow, no_column
from polytask.tasks.splitting import choose_dev, classes_of_words, sets_of, without_new_classes
from polytask.types import UserError

COLUMN_FIELDS = ("text", "options", "label", "tags")
"""The fields of a task that name columns: these are what is kept of a row."""
MOST_SHOWN = 20
"""Empty values that an error lists."""
FILE_FIELDS = ("format", "encoding")
"""The fields of a task that must not be set for data in memory: they would be used for the new files too."""


def memory_folder() -> Path:
    """The folder of the files with data that was in memory. A run copies its own into its folder."""
    return cache_folder() / "data"


def with_files(tasks: Mapping[Any, Any], where: str) -> dict[str, Any]:
    """Returns the tasks as plain mappings: objects such as `Classes` as mappings, and data in memory as files."""
    return {
        str(name): _with_files(str(name), task, f"{where}: tasks.{name}", _sharing(task, tasks))
        for name, task in tasks.items()
    }


def file_of(data: Any, columns: Sequence[str], name: str, where: str) -> str:
    """Returns the file that holds data in memory; a file's name unchanged."""
    return str(write_rows(rows_of(data, columns, where), memory_folder(), name)) if is_in_memory(data) else data


def _sharing(task: Any, tasks: Mapping[Any, Any]) -> list[Any]:
    """Returns the tasks that share the rows of a task, the task included."""
    group = _field(task, "share_rows")
    return [task] if group is None else [other for other in tasks.values() if _field(other, "share_rows") == group]


def _field(task: Any, name: str) -> Any:
    """Returns a field of a task that is an object or a mapping; None if it is neither, or has no such field."""
    return task.get(name) if isinstance(task, Mapping) else getattr(task, name, None)


def _with_files(name: str, task: Any, where: str, sharing: Sequence[Any]) -> Any:
    """Returns one task as a mapping. `sharing` are the tasks that share its rows, the task included."""
    content = task.to_mapping() if isinstance(task, TaskFields) else task
    if not isinstance(content, Mapping):
        return content  # an error later, with the field's name
    content = {key: os.fspath(value) if isinstance(value, os.PathLike) else value for key, value in content.items()}
    if isinstance(task, TaskFields) and content.get("dev") is None:
        content |= dict(zip(("train", "dev"), _hold_out(task, sharing, f"{where}.train"), strict=True))
        if not any(is_in_memory(getattr(task, field)) or isinstance(content.get(field), str) for field in DATA_FIELDS):
            content |= dict.fromkeys(FILE_FIELDS)  # they were those of the only file
    given = [field for field in DATA_FIELDS if is_in_memory(content.get(field))]
    if given:
        check_task_name(name, where)
    for field in FILE_FIELDS if given else ():
        if content.get(field) is not None:
            raise UserError(f"{where}.{field}: must be left out for data in memory, found {content[field]!r}")
    for field in given:
        columns = _columns(sharing, COLUMN_FIELDS if field != "unlabelled" else ("text", "options", "tags"))
        file = f"{content.get('share_rows') or name}-{field}"
        content[field] = file_of(content[field], columns, file, f"{where}.{field}")
    return content


def _columns(tasks: Sequence[Any], fields: Sequence[str] = COLUMN_FIELDS) -> list[str]:
    """Returns the columns that these fields of the tasks name."""
    names: list[str] = []
    for field in fields:
        for value in (_field(task, field) for task in tasks):
            names += [] if value is None else [value] if isinstance(value, str) else map(str, value)
    return list(dict.fromkeys(names))


def _hold_out(task: TaskFields, sharing: Sequence[Any], where: str) -> tuple[list[Record], list[Record]]:
    """Splits the training rows into training and dev rows: the same ones for tasks that share rows."""
    if not 0 < task.dev_share <= 0.5:
        raise UserError(f"{where.removesuffix('train')}dev_share: must be in (0, 0.5], found {task.dev_share!r}")
    columns = _columns(sharing)
    is_file = isinstance(task.train, str | os.PathLike)
    rows = list(_file_rows(task, columns) if is_file else rows_of(task.train, columns, where))
    texts = [task.text] if isinstance(task.text, str) else list(task.text)
    if task.broken_rows == "stop":
        skips = task.blank_labels == "skip" or task.share_rows is not None or task.kind == "multilabel"
        may_be_empty = _columns(sharing, ["options", *(["label"] if skips else [])])
        _check_filled(rows, [column for column in columns if column not in may_be_empty], where)
    classes = None
    if isinstance(task.label, str) and task.kind in ("classes", "yes_no") and task.share_rows is None:
        classes = [class_name(str(row.get(task.label))) for row in rows]
    chosen = choose_dev([[row.get(text) for text in texts] for row in rows], task.dev_share, task.dev_seed, classes)
    in_dev = chosen.in_dev
    for one in sharing if task.share_rows is not None else [task]:
        in_dev = _without_new_classes(one, rows, chosen.groups, in_dev)
    if isinstance(task, Tokens):
        labels = [classes_of_words(row.get(str(task.label))) for row in rows]
        in_dev = without_new_classes(chosen.groups, labels, in_dev)
    if not any(in_dev) or all(in_dev):
        raise UserError(
            f"{where}: {len(rows)} rows are too few, or too similar, to hold out {task.dev_share:.0%} of them for "
            "evaluation; pass `dev`"
        )
    both = list(zip(rows, in_dev, strict=True))
    return [row for row, dev in both if not dev], [row for row, dev in both if dev]


def _without_new_classes(task: Any, rows: Sequence[Record], groups: Sequence[bytes], in_dev: list[bool]) -> list[bool]:
    """Moves rows to train if they have a class of the task that no training row has.

    A task of kind classes has a share of every class in dev, unless it shares rows.
    """
    label = _field(task, "label")
    if not isinstance(label, str):
        return in_dev
    values = [row.get(label) for row in rows]
    if _field(task, "kind") == "multilabel":
        return without_new_classes(groups, sets_of(values, _field(task, "separator")), in_dev)
    if _field(task, "kind") == "classes" and _field(task, "share_rows") is not None:
        classes = [[] if is_empty(value) else [class_name(str(value))] for value in values]
        return without_new_classes(groups, classes, in_dev)
    return in_dev


def _check_filled(rows: Sequence[Record], columns: Sequence[str], where: str) -> None:
    """Raises a UserError about rows without a text or a label, while their numbers are those of the user's data."""
    empty = [
        f"{where}, row {number}, column {column!r}: the value is empty"
        for number, row in enumerate(rows, start=1)
        for column in columns
        if row.get(column) is None or not str(row[column]).strip()
    ]
    if empty:
        more = [f"... and {len(empty) - MOST_SHOWN:,} more"] if len(empty) > MOST_SHOWN else []
        advice = f"{len(empty):,} empty values; fill them in, or set `broken_rows` to skip to leave their rows out:"
        raise UserError("\n  ".join([advice, *empty[:MOST_SHOWN], *more]))


def _file_rows(task: TaskFields, columns: Sequence[str]) -> list[Record]:
    """Returns the rows of a training file with these columns; those that cannot be read are an error, or left out."""
    options: dict[str, Any] = {key: getattr(task, key) for key in ("format", "delimiter", "quoting", "encoding")}
    source = open_source(str(task.train), **options)
    missing = [str(no_column(source, column)) for column in columns if column not in source.columns]
    if missing:
        raise UserError("\n".join(missing))
    rows = []
    for entry in source.rows(columns):
        if not isinstance(entry, BrokenRow):
            rows.append(dict(zip(columns, entry[1], strict=True)))
        elif task.broken_rows == "stop":
            raise UserError(f"{entry}; correct it, or set `broken_rows` to skip to leave it out")
    return rows
