"""Divides the dev rows of every task: those that the search may use, and those that are held back for the verdict."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from polytask.disk.atomic import write_atomically
from polytask.kinds.table import KINDS
from polytask.recipe.records import Recipe
from polytask.settings import TaskSpec
from polytask.tasks.reading import open_for
from polytask.tasks.sources.source import BrokenRow, Source
from polytask.tasks.splitting import plan_split, rows_writer
from polytask.types import UserError

HoldBack = float | str
"""The share of the dev rows, or `test`: the tasks' test files."""
DIALECT: Mapping[str, Any] = {"format": None, "delimiter": None, "quoting": None, "encoding": None}


def read_hold_back(text: str | float) -> HoldBack:
    """Reads `--hold-back`: a share in [0, 0.9], or `test`."""
    if text == "test":
        return "test"
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 0.9:
        raise UserError(f"--hold-back: must be a share of the dev rows in [0, 0.9], or test; found {text}")
    return share


def divide_rows(recipe: Recipe, hold_back: HoldBack, folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the recipe fields of the search's runs and those of the final runs, by dotted name.

    The final runs score the held-back rows as their test split. The search's runs have no test split.
    """
    tasks = [task for task in recipe.tasks.values() if KINDS[task.kind].has_predictions]
    search: dict[str, Any] = {f"tasks.{task.name}.test": None for task in tasks}
    if hold_back == "test":
        missing = [task.name for task in tasks if task.test is None]
        if missing:
            raise UserError(
                f"--hold-back test: these tasks have no test file: {', '.join(missing)}; pass a share of the dev rows, "
                "such as --hold-back 0.5"
            )
        return search, {f"tasks.{task.name}.test": task.test for task in tasks}
    if hold_back == 0:
        return search, search
    final = dict[str, Any]()
    for task in tasks:
        sharing = [other for other in tasks if task.share_rows is not None and other.share_rows == task.share_rows]
        changed = _divide(task, sharing, float(hold_back), folder)
        final |= {f"tasks.{task.name}.{name}": value for name, value in changed.items()}
    return {**final, **search}, final


def _divide(task: TaskSpec, sharing: Sequence[TaskSpec], share: float, folder: Path) -> dict[str, Any]:
    """Writes a task's dev rows as two files; returns the fields with which the task reads them.

    Tasks that share rows (`sharing`) have the same files.
    """
    name, (ending, write) = task.share_rows or task.name, rows_writer(task)
    parts = plan_split(replace(task, train=task.dev), folder / "unused", share, sharing=sharing)
    files = {"dev": folder / f"{name}-dev.{ending}", "test": folder / f"{name}-held-back.{ending}"}
    for file, content in zip(files.values(), parts.contents, strict=True):
        _write(file, content)
    changed: dict[str, Any] = {split: str(file.resolve()) for split, file in files.items()}
    if any(getattr(task, field) is not None for field in DIALECT):  # the recipe's dialect holds for the other files too
        changed |= DIALECT
        for split, spec in (("train", task), ("unlabelled", replace(task, label=None))):
            if (source := getattr(task, split)) is not None:
                file, opened = folder / f"{name}-{split}.{ending}", open_for(spec, source)
                _write(file, write(opened.columns, _readable_rows(spec, opened)))
                changed[split] = str(file.resolve())
    return changed


def _write(file: Path, content: bytes) -> None:
    if not file.exists() or file.read_bytes() != content:
        write_atomically(file, content.decode())


def _readable_rows(task: TaskSpec, source: Source) -> list[list[Any]]:
    columns = (*task.text, *(() if task.skips_blanks else task.label_columns))
    rows = source.rows(source.columns, needed=columns)
    return [row[1] for row in rows if not isinstance(row, BrokenRow)]
