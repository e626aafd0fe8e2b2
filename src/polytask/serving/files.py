"""Predictions for whole files: csv, tsv, jsonl or parquet in and out, row by row in flat memory.

Everything that can be wrong with the input, or stand in the way of the output, stops before the first prediction.
"""

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polytask.disk.atomic import atomic_file
from polytask.disk.writable import check_target
from polytask.serving.added import AddedColumns, check_names
from polytask.serving.input import InputFile, Record
from polytask.serving.output import output_dialect, output_format, write_rows
from polytask.serving.predictor import Predictor, windows
from polytask.tasks.reading import open_source, warn_of_guess
from polytask.types import Prediction, UserError

TextColumns = Mapping[str, tuple[str, ...]]
"""For each task, the columns of its texts."""
Added = Mapping[str, AddedColumns]
NAMED = 20  # columns that an error lists


@dataclass(frozen=True)
class PredictedFile:
    """What `predict_file` wrote."""

    rows: int
    without_text: Mapping[str, int]
    """For each task, how many rows have no text for it and therefore no prediction."""


def predict_file(
    predictor: Predictor,
    tasks: str | Sequence[str] | None,
    source: str,
    target: str | Path,
    columns: Sequence[str] | None = None,
    *,
    probabilities: str = "top",
    strict: bool = False,
    force: bool = False,
) -> PredictedFile:
    """Writes every row of `source` to `target`, with the predictions of one or several tasks added as columns.

    tasks: by default every task whose text columns the file has. columns: by default those of the training files.
    probabilities: "top" adds that of the predicted class, "all" also those of every class, "none" none.
    A row without text gets an empty prediction; with `strict` it is an error.
    An existing target is replaced only with `force`, and the input itself never.
    Nothing is written when anything fails.
    """
    target = Path(target)
    fallback = _encoding(predictor, tasks)
    opened = open_source(source, fallback=fallback)
    warn_of_guess(opened, fallback)
    file = InputFile(opened)
    _check_target(target, file, force)
    text_columns = _text_columns(predictor, [tasks] if isinstance(tasks, str) else tasks, file, columns)
    added = {task: AddedColumns(task, predictor.bundle.labels[task], probabilities) for task in text_columns}
    check_names(source, file.columns, added)
    file.check(_different(text_columns), strict)
    return _write(predictor, text_columns, added, file, target)


def _encoding(predictor: Predictor, tasks: str | Sequence[str] | None) -> str | None:
    """The encoding that the recipe gave for the tasks' own files: a file that is not Unicode is read with it too."""
    wanted = predictor.tasks if tasks is None else [tasks] if isinstance(tasks, str) else tasks
    encodings = {predictor.spec(task).encoding for task in wanted} - {None}
    return encodings.pop() if len(encodings) == 1 else None


def _write(
    predictor: Predictor, text_columns: TextColumns, added: Added, file: InputFile, target: Path
) -> PredictedFile:
    format, dialect = output_format(target), output_dialect(target, file.path, file.dialect)
    types: dict[str, Any] = dict(file.column_types) if format == "parquet" else dict.fromkeys(file.columns)
    for columns_of_task in added.values():
        types |= columns_of_task.types
    rows, without_text = 0, Counter(dict.fromkeys(added, 0))
    with atomic_file(target) as part, write_rows(part, format, dialect, types) as write:
        for window, predictions in _predicted(predictor, text_columns, file):
            write([_with_predictions(record, i, predictions, added) for i, record in enumerate(window)])
            rows += len(window)
            without_text.update({t: sum(p.label is None for p in found) for t, found in predictions.items()})
    return PredictedFile(rows, dict(without_text))


def _predicted(
    predictor: Predictor, text_columns: TextColumns, file: InputFile
) -> Iterator[tuple[list[Record], dict[str, list[Prediction]]]]:
    """Some rows at a time, with each task's predictions for them; tasks with the same texts are asked together."""
    asked: dict[tuple[str, ...], list[str]] = {}
    for task, names in text_columns.items():
        asked.setdefault(names, []).append(task)
    columns = _different(text_columns)
    for window in windows(file.records(), lambda row: _size(row[1])):
        texts = [file.texts(number, record, columns, strict=False) for number, record in window]
        found: dict[str, list[Prediction]] = {}
        for names, tasks in asked.items():
            found |= predictor.answer(tasks, [tuple(row[name] for name in names) for row in texts])
        yield [record for _, record in window], found


def _with_predictions(record: Record, place: int, predictions: Mapping[str, list[Prediction]], added: Added) -> Record:
    row = dict(record)
    for task, columns in added.items():
        row |= columns.values(predictions[task][place])
    return row


def _different(text_columns: TextColumns) -> list[str]:
    return list(dict.fromkeys(name for names in text_columns.values() for name in names))


def _size(record: Record) -> int:
    """About the number of characters that a row holds."""
    total, left = 0, list(record.values())
    while left:
        value = left.pop()
        if isinstance(value, dict):
            left.extend(value.values())
        elif isinstance(value, list | tuple):
            left.extend(value)
        else:
            total += len(value) if isinstance(value, str | bytes) else 1
    return total


def _text_columns(
    predictor: Predictor, tasks: Sequence[str] | None, file: InputFile, columns: Sequence[str] | None
) -> TextColumns:
    if columns:
        tasks = predictor.taking(len(columns)) if tasks is None else tasks
        predictor.check(tasks, [tuple(columns)])
        return dict.fromkeys(tasks, tuple(columns))
    if tasks is not None:
        predictor.check(tasks)
        return {task: predictor.spec(task).text for task in tasks}
    specs = predictor.bundle.specs.values()
    found = {spec.name: spec.text for spec in specs if spec.kind != "text" and set(spec.text) <= set(file.columns)}
    if not found:
        needs = "; ".join(f"{spec.name}: {', '.join(spec.text)}" for spec in specs)
        more = len(file.columns) - NAMED
        have = ", ".join(file.columns[:NAMED]) + (f" and {more:,} more" if more > 0 else "")
        raise UserError(
            f"{file.name}: has the text columns of no task ({needs}); its columns are: {have}; name those to "
            "read with --columns (columns=[...])"
        )
    return found


def _check_target(target: Path, file: InputFile, force: bool) -> None:
    output_format(target)
    check_target(target)
    if not os.path.isdir(target.parent):
        raise UserError(f"{target}: there is no folder {target.parent}")
    if file.path is not None and os.path.exists(target) and os.path.samefile(file.path, target):
        raise UserError(f"{target}: is the input itself, which is never replaced; choose another name for the output")
    if os.path.lexists(target) and not force:
        raise UserError(f"{target}: exists already; choose another name, or pass --force (force=True) to replace it")
