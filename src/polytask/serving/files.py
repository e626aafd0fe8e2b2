"""Predictions for whole files: csv, tsv, jsonl or parquet in and out, row by row in flat memory."""

import csv
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from polytask.serving.predictor import WINDOW, Predictor, windows
from polytask.tasks.reading import open_source, warn_of_guess
from polytask.tasks.rows import read_texts
from polytask.tasks.source import Source
from polytask.types import Prediction, UserError
from polytask.whole import whole_file
from polytask.writable import check_target

Rows = Iterator[dict[str, Any]]


def predict_file(
    predictor: Predictor,
    tasks: str | Sequence[str] | None,
    source: str,
    target: str | Path,
    columns: Sequence[str] | None = None,
) -> int:
    """Writes every row of `source` with the predictions of one task or of several added; gives back how many rows.

    Columns: as in training unless given. Tasks left out: all whose columns the file has. Added for each task:
    predicted_TASK, and probability_TASK where it has classes.
    """
    target = Path(target)
    check_target(target)
    writer = _writer_for(target)
    fallback = _encoding(predictor, tasks)
    opened = open_source(source, fallback=fallback)
    warn_of_guess(opened, fallback)
    wanted = _columns(predictor, [tasks] if isinstance(tasks, str) else tasks, opened, columns)
    read = list(dict.fromkeys(column for columns_of_task in wanted.values() for column in columns_of_task))
    rows = read_texts(opened, read)
    with whole_file(target) as beside, writer(beside) as write:
        count: int = write(_predicted(predictor, wanted, read, rows))
    return count


def _encoding(predictor: Predictor, tasks: str | Sequence[str] | None) -> str | None:
    """The encoding that the recipe gave for the tasks' own files: a file that is not Unicode is read with it too."""
    wanted = predictor.tasks if tasks is None else [tasks] if isinstance(tasks, str) else tasks
    encodings = {predictor.spec(task).encoding for task in wanted} - {None}
    return encodings.pop() if len(encodings) == 1 else None


def _columns(
    predictor: Predictor, tasks: Sequence[str] | None, source: Source, columns: Sequence[str] | None
) -> dict[str, tuple[str, ...]]:
    """For each task that is asked, the columns of its texts."""
    if columns:
        return dict.fromkeys(predictor.taking(len(columns)) if tasks is None else tasks, tuple(columns))
    if tasks is not None:
        return {task: predictor.spec(task).text for task in tasks}
    specs = predictor.bundle.specs.values()
    found = {spec.name: spec.text for spec in specs if spec.kind != "text" and set(spec.text) <= set(source.columns)}
    if not found:
        needs = "; ".join(f"{spec.name}: {', '.join(spec.text)}" for spec in specs)
        have = ", ".join(source.columns)
        raise UserError(
            f"{source.name}: has the text columns of no task ({needs}); its columns are: {have}; say which to read"
        )
    return found


def _predicted(
    predictor: Predictor,
    columns: Mapping[str, tuple[str, ...]],
    read: Sequence[str],
    rows: Iterator[tuple[int, dict[str, Any], tuple[str, ...]]],
) -> Rows:
    """The rows with the tasks' predictions; tasks with the same texts are asked together."""
    asked: dict[tuple[str, ...], list[str]] = {}
    for task, names in columns.items():
        asked.setdefault(names, []).append(task)
    for window in windows(rows, lambda row: sum(len(value) for value in row[1].values() if isinstance(value, str))):
        found: dict[str, list[Prediction]] = {}
        for names, tasks in asked.items():
            places = [read.index(name) for name in names]
            found |= predictor.answer(tasks, [tuple(texts[place] for place in places) for _, _, texts in window])
        for i, (_, row, _) in enumerate(window):
            yield {**row, **{key: value for task in columns for key, value in _added(found[task][i]).items()}}


def _added(prediction: Prediction) -> dict[str, Any]:
    added: dict[str, Any] = {f"predicted_{prediction.task}": prediction.label}
    if prediction.probabilities is not None:
        added[f"probability_{prediction.task}"] = round(prediction.probabilities[str(prediction.label)], 6)
    return added


Writer = Callable[[Rows], int]


@contextmanager
def _delimited(path: Path, delimiter: str) -> Iterator[Writer]:
    with path.open("w", encoding="utf-8", newline="") as file:

        def write(rows: Rows) -> int:
            count = 0
            table: csv.DictWriter[str] | None = None
            for count, row in enumerate(rows, start=1):  # noqa: B007  (count is the result)
                if table is None:
                    table = csv.DictWriter(file, list(row), delimiter=delimiter, lineterminator="\n")
                    table.writeheader()
                table.writerow(row)
            return count

        yield write


@contextmanager
def _jsonl(path: Path) -> Iterator[Writer]:
    with path.open("w", encoding="utf-8") as file:

        def write(rows: Rows) -> int:
            count = 0
            for count, row in enumerate(rows, start=1):  # noqa: B007
                file.write(json.dumps(row, ensure_ascii=False, default=str) + "\n")
            return count

        yield write


@contextmanager
def _parquet(path: Path) -> Iterator[Writer]:
    def write(rows: Rows) -> int:
        count = 0
        table: pq.ParquetWriter | None = None
        try:
            while window := list(islice(rows, WINDOW)):
                piece = pa.Table.from_pylist(window, schema=table.schema if table else None)
                if table is None:
                    table = pq.ParquetWriter(path, piece.schema)
                table.write_table(piece)
                count += len(window)
        finally:
            if table is not None:
                table.close()
        return count

    yield write


def _writer_for(target: Path) -> Callable[[Path], Any]:
    writers: dict[str, Callable[[Path], Any]] = {
        ".csv": lambda path: _delimited(path, ","),
        ".tsv": lambda path: _delimited(path, "\t"),
        ".jsonl": _jsonl,
        ".parquet": _parquet,
    }
    if target.suffix not in writers:
        raise UserError(f"{target}: the ending says the format; use one of {', '.join(writers)}")
    if not target.parent.is_dir():
        raise UserError(f"{target}: there is no folder {target.parent}")
    return writers[target.suffix]
