"""Predictions for whole files: csv, tsv, jsonl or parquet in and out, row by row in flat memory."""

import csv
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice, tee
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from polytask.serving.predictor import WINDOW, Predictor
from polytask.tasks.rows import read_texts
from polytask.types import Prediction, UserError
from polytask.whole import whole_file

Rows = Iterator[dict[str, Any]]


def predict_file(
    predictor: Predictor, task: str, source: str, target: str | Path, columns: Sequence[str] | None = None
) -> int:
    """Writes every row of `source` with the task's prediction added; gives back how many rows there were.

    Columns: as in training unless given. Added: predicted_TASK, and probability_TASK where the task has classes.
    """
    target = Path(target)
    writer = _writer_for(target)
    spec = predictor.spec(task)
    columns = tuple(columns) if columns else spec.text
    rows, texts = tee(read_texts(source, columns))
    # tee holds what one side has read and the other has not: a window of rows, because predictions come by windows.
    predictions = predictor.stream(task, (texts_of_row for _, _, texts_of_row in texts))
    with whole_file(target) as beside, writer(beside) as write:
        count: int = write(_with_prediction(row, p) for (_, row, _), p in zip(rows, predictions, strict=True))
    return count


def _with_prediction(row: Mapping[str, Any], prediction: Prediction) -> dict[str, Any]:
    added: dict[str, Any] = {f"predicted_{prediction.task}": prediction.label}
    if prediction.probabilities is not None:
        added[f"probability_{prediction.task}"] = round(prediction.probabilities[str(prediction.label)], 6)
    return {**row, **added}


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
