"""Predicts whole files (csv, tsv, jsonl or parquet) row by row, in constant memory.

All errors in the input, and all reasons why the output cannot be written, are reported before the first prediction.
"""

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from polytask.disk.atomic import atomic_file
from polytask.disk.writable import check_target
from polytask.serving.added import AddedColumns, added_columns, check_names
from polytask.serving.examples import chunks
from polytask.serving.input import InputFile, Record
from polytask.serving.output import output_dialect, output_format, write_rows
from polytask.serving.predictor import Predictor
from polytask.serving.text_columns import TextColumns, text_columns
from polytask.tasks.lengths import refuse_long
from polytask.tasks.reading import open_source, warn_of_guess
from polytask.tasks.sources.source import BrokenRow
from polytask.types import Prediction, UserError

Added = Mapping[str, AddedColumns]
"""For each task, the columns that its predictions add."""


@dataclass(frozen=True)
class PredictedFile:
    """The result of `predict_file`."""

    rows: int
    without_text: Mapping[str, int]
    """For each task, the number of rows without text, which have no prediction."""
    truncated: Mapping[str, int] = field(default_factory=dict)
    """For each task, the number of rows that are longer than the model's `max_length`."""
    abstained: Mapping[str, int] = field(default_factory=dict)
    """For each task, the number of rows whose probabilities are all too low, or in which spans were left out because of
    that (`abstain_below`)."""


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
    """Writes all rows of `source` to `target`, with the predictions of one or several tasks as additional columns.

    Args:
        predictor: The model.
        tasks: The tasks to predict. Default: all tasks whose text columns the file has.
        source: The file to predict.
        target: The file to write. Nothing is written if there is any error.
        columns: The text columns. Default: those of the training data.
        probabilities: "top" adds the probability of the predicted class, "all" also those of all classes, "none" none.
        strict: Whether a row without text is an error. Otherwise its prediction is empty.
        force: Whether to overwrite an existing target. The source is never overwritten.
    """
    target = Path(target)
    fallback = encoding_of_tasks(predictor, tasks)
    opened = open_source(source, fallback=fallback)
    warn_of_guess(opened, fallback)
    file = InputFile(opened)
    _check_target(target, file, force)
    names = [tasks] if isinstance(tasks, str) else tasks
    return predict_rows(predictor, names, file, target, columns, probabilities=probabilities, strict=strict)


def predict_rows(
    predictor: Predictor,
    tasks: Sequence[str] | None,
    file: InputFile,
    target: Path,
    columns: Sequence[str] | None = None,
    *,
    probabilities: str = "top",
    strict: bool = False,
    expected: int | None = None,
) -> PredictedFile:
    """Does what `predict_file` does for an open file. It must have the expected number of rows, if one is given."""
    chosen = text_columns(predictor, tasks, columns, file.columns, file.name)
    lists = output_format(target) in ("jsonl", "parquet")
    added = {task: added_columns(predictor, task, probabilities, lists) for task in chosen}
    check_names(file.name, file.columns, added)
    tag_columns = {task: _tag_columns(predictor, task, file) for task in chosen}
    plain = {task: names for task, names in chosen.items() if not predictor.spec(task).has_options}
    options = list(dict.fromkeys(names for task, names in chosen.items() if task not in plain))
    tagged = [(plain[task], tag_columns[task]) for task in plain]
    file.check(_all_columns(plain), strict, tagged, _columns_of_words(predictor, plain), options)
    _check_lengths(predictor, chosen, file)
    return _write(predictor, chosen, tag_columns, added, file, target, expected)


def _check_lengths(predictor: Predictor, text_columns: TextColumns, file: InputFile) -> None:
    """With `truncate: error`, reads all rows and refuses those that are too long."""
    packer = predictor.bundle.packer
    if packer.truncate != "error":
        return
    rows: dict[int, BrokenRow] = {}
    of_words = _columns_of_words(predictor, text_columns)
    for chunk in chunks(file.records(), lambda row: _num_characters(row[1])):
        for task, names in text_columns.items():
            parts = names, predictor.spec(task).has_options, False, of_words
            found = [(number, file.example(number, record, *parts)) for number, record in chunk]
            full = [(number, example) for number, example in found if all(example)]
            for i, tokens in predictor.too_long((task,), [texts for _, texts in full]) if full else ():
                number, problem = full[i][0], f"task {task}: {tokens:,} tokens"
                rows.setdefault(number, BrokenRow(file.name, file.source.unit, number, None, "", problem))
    refuse_long(list(rows.values()), len(rows), packer.max_length)


def encoding_of_tasks(predictor: Predictor, tasks: str | Sequence[str] | None) -> str | None:
    """The encoding in the recipe of the tasks' training data, which is used if the file is not Unicode."""
    names = predictor.tasks if tasks is None else [tasks] if isinstance(tasks, str) else tasks
    encodings = {predictor.spec(task).encoding for task in names} - {None}
    return encodings.pop() if len(encodings) == 1 else None


def _tag_columns(predictor: Predictor, task: str, file: InputFile) -> tuple[str, ...]:
    """The columns with the tags of a task's words; none if the file does not have all of them."""
    tags = predictor.spec(task).tags
    return tags if set(tags) <= set(file.columns) else ()


def _columns_of_words(predictor: Predictor, text_columns: TextColumns) -> set[str]:
    """The text columns that may have lists of words: those of tasks with a label for each word."""
    return {name for task, names in text_columns.items() if predictor.spec(task).kind == "tokens" for name in names}


def _write(
    predictor: Predictor,
    text_columns: TextColumns,
    tag_columns: TextColumns,
    added: Added,
    file: InputFile,
    target: Path,
    expected: int | None,
) -> PredictedFile:
    format, dialect = output_format(target), output_dialect(target, file.path, file.dialect)
    found = file.column_types if format == "parquet" else {}
    types: dict[str, Any] = {column: found.get(column) for column in file.written_columns}
    for columns_of_task in added.values():
        types |= columns_of_task.types
    rows, without_text, truncated, abstained = 0, *(Counter(dict.fromkeys(added, 0)) for _ in range(3))
    with atomic_file(target) as part, write_rows(part, format, dialect, types) as write:
        for chunk, predictions in _predicted(predictor, text_columns, tag_columns, file):
            write([_with_predictions(file.written(record), i, predictions, added) for i, record in enumerate(chunk)])
            rows += len(chunk)
            for task, predicted in predictions.items():
                without_text[task] += sum(p.label is None and not p.abstained for p in predicted)
                truncated[task] += sum(p.truncated for p in predicted)
                abstained[task] += sum(p.abstained for p in predicted)
        if expected not in (None, rows):
            raise UserError(f"{file.name}: expected {expected:,} rows, found {rows:,}: the file has changed")
    return PredictedFile(rows, dict(without_text), dict(truncated), dict(abstained))


def _predicted(
    predictor: Predictor, text_columns: TextColumns, tag_columns: TextColumns, file: InputFile
) -> Iterator[tuple[list[Record], dict[str, list[Prediction]]]]:
    """Yields a chunk of rows and each task's predictions for them. Tasks with the same texts share the encoder."""
    tasks_of: dict[tuple[tuple[str, ...], bool, tuple[str, ...]], list[str]] = {}
    for task, names in text_columns.items():
        tasks_of.setdefault((names, predictor.spec(task).has_options, tag_columns[task]), []).append(task)
    of_words = _columns_of_words(predictor, text_columns)
    for chunk in chunks(file.records(), lambda row: _num_characters(row[1])):
        predictions: dict[str, list[Prediction]] = {}
        for (names, options, tag_names), tasks in tasks_of.items():
            parts = names, options, False, of_words
            examples = [file.example(number, record, *parts) for number, record in chunk]
            tags = None
            if tag_names:
                tags = [file.example(number, record, tag_names, False, strict=False) for number, record in chunk]
            predictions |= predictor.answer(tasks, examples, tags)
        yield [record for _, record in chunk], predictions


def _with_predictions(record: Record, index: int, predictions: Mapping[str, list[Prediction]], added: Added) -> Record:
    row = dict(record)
    for task, columns in added.items():
        row |= columns.values(predictions[task][index])
    return row


def _all_columns(text_columns: TextColumns) -> list[str]:
    return list(dict.fromkeys(name for names in text_columns.values() for name in names))


def _num_characters(record: Record) -> int:
    """Approximate number of characters of a row."""
    total, values = 0, list(record.values())
    while values:
        value = values.pop()
        if isinstance(value, dict):
            values.extend(value.values())
        elif isinstance(value, list | tuple):
            values.extend(value)
        else:
            total += len(value) if isinstance(value, str | bytes) else 1
    return total


def _check_target(target: Path, file: InputFile, force: bool) -> None:
    output_format(target)
    check_target(target)
    if not os.path.isdir(target.parent):
        raise UserError(f"{target}: the folder {target.parent} does not exist; create it first")
    if file.path is not None and os.path.exists(target) and os.path.samefile(file.path, target):
        raise UserError(f"{target}: is the input file, which is never overwritten; choose another name for the output")
    if os.path.lexists(target) and not force:
        raise UserError(f"{target}: already exists; choose another name, or pass --force (force=True) to overwrite it")
