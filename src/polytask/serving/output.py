"""Writes rows as csv, tsv, jsonl or parquet."""

import csv
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from polytask.serving.input import Dialect, Record
from polytask.tasks.reading import ENDINGS, Format
from polytask.types import UserError

WRITTEN = {ending: format for ending, format in ENDINGS.items() if format in ("csv", "tsv", "jsonl", "parquet")}
JSON = json.JSONEncoder(ensure_ascii=False, default=str)
DELIMITERS = {"csv": ",", "tsv": "\t"}

Write = Callable[[Sequence[Record]], None]


def output_format(target: Path) -> Format:
    """The format of a file, by its extension."""
    if target.suffix.lower() not in WRITTEN:
        raise UserError(f"{target}: the extension must be one of {', '.join(WRITTEN)}")
    return WRITTEN[target.suffix.lower()]


def output_dialect(target: Path, source: Path | None, input_dialect: Dialect | None) -> Dialect:
    """The input's dialect, unless the output's extension requires another delimiter.

    .tsv means tabs. .csv means commas if the input has tabs and is not itself called .csv.
    """
    usual = DELIMITERS.get(output_format(target), ",")
    if input_dialect is None:
        return Dialect(usual, "utf-8")
    extension, own = target.suffix.lower(), source.suffix.lower() if source else ""
    other = extension == ".tsv" or (extension == ".csv" and input_dialect.delimiter == "\t" and own != ".csv")
    return Dialect(usual if other else input_dialect.delimiter or usual, input_dialect.encoding)


@contextmanager
def write_rows(path: Path, format: Format, dialect: Dialect, types: Mapping[str, Any]) -> Iterator[Write]:
    """Yields a function that writes the next rows. `types` has all columns; their Arrow types are for parquet only."""
    match format:
        case "jsonl":
            with path.open("w", encoding="utf-8") as file:
                yield lambda rows: file.writelines(JSON.encode(row) + "\n" for row in rows)
        case "parquet":
            schema = pa.schema(list(types.items()))
            with pq.ParquetWriter(path, schema) as parquet:
                yield lambda rows: parquet.write_table(_table(rows, schema))
        case _:
            with path.open("w", encoding=dialect.encoding, newline="") as file:
                yield _csv_writer(file, dialect.delimiter or ",", list(types))


def _csv_writer(file: IO[str], delimiter: str, columns: list[str]) -> Write:
    """Writes the header and returns a function that writes rows.

    Python's csv module does not quote a single carriage return, which readers take for the end of a row.
    """
    plain = csv.writer(file, delimiter=delimiter, lineterminator="\n")
    quoted = csv.writer(file, delimiter=delimiter, lineterminator="\n", quoting=csv.QUOTE_ALL)

    def write(cells: list[str | None]) -> None:
        (quoted if any(cell and "\r" in cell for cell in cells) else plain).writerow(cells)

    def write_all(rows: Sequence[Record]) -> None:
        for row in rows:
            write([as_text(row.get(column)) for column in columns])

    write([*columns])
    return write_all


def _table(rows: Sequence[Record], schema: pa.Schema) -> pa.Table:
    arrays = []
    for field in schema:
        values = [row.get(field.name) for row in rows]
        arrays.append(pa.array(map(as_text, values) if field.type == pa.string() else values, field.type))
    return pa.Table.from_arrays(arrays, schema=schema)


def as_text(value: Any) -> str | None:
    """A value as text: numbers, booleans, lists and objects as JSON, which can be read back."""
    if value is None or isinstance(value, str):
        return value
    # Dates, decimals and others have no JSON form; as the only value they need no quotes.
    return JSON.encode(value) if isinstance(value, bool | int | float | list | tuple | dict) else str(value)
