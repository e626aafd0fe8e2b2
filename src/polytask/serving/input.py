"""A file of rows to predict: all columns of every row, and checks that read every row before the first prediction.

Rows are read one by one, so memory does not grow with the file. Knows the readers of `tasks`, and no model.
"""

import codecs
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from polytask.tasks.delimited import DelimitedSource
from polytask.tasks.jsonl import JsonLinesSource
from polytask.tasks.parquet import ParquetSource
from polytask.tasks.rows import EMPTY_TEXT, text_problem
from polytask.tasks.source import BrokenRow, Source, no_column, shortened
from polytask.types import UserError

Record = dict[str, Any]
LARGEST_EXACT = 2**53  # the largest integer up to which a float64 holds every integer
COLUMN_TYPES = (
    ({"bool"}, pa.bool_()),
    ({"integer", "large integer"}, pa.int64()),
    ({"integer", "float"}, pa.float64()),
)
"""The kinds of value that a typed parquet column can hold. A column with other kinds is written as text."""


@dataclass(frozen=True)
class Dialect:
    """How a delimited file is written."""

    delimiter: str | None
    """None: unknown, because the input has one column."""
    encoding: str


class InputFile:
    """A source whose rows keep all that the file has in them."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.name = source.name
        self.path: Path | None = getattr(source, "file", None)

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """Every column; of JSON lines the keys of all lines, in the order in which they first appear."""
        if isinstance(self.source, JsonLinesSource):
            found = dict.fromkeys(key for line in self.source.objects() for key in _readable(line)[1])
            return tuple(found) or self.source.columns  # which says so when the file is empty
        return _named(self.source)

    def records(self) -> Iterator[tuple[int, Record]]:
        """The number of each row and its columns. A JSON line has only its own keys."""
        columns = self.columns
        if isinstance(self.source, JsonLinesSource):
            known = frozenset(columns)
            for line in self.source.objects():
                number, record = _readable(line)
                if not record.keys() <= known:
                    raise UserError(f"{self.name}: the file has changed while it was read; try again")
                yield number, record
        else:
            for row in self.source.rows(self.source.columns, needed=()):
                number, values = _readable(row)
                yield number, dict(zip(columns, values, strict=True))

    def texts(self, number: int, record: Record, columns: Sequence[str], strict: bool) -> dict[str, str | None]:
        """The texts in these columns of a row: None for one that is missing or empty, which `strict` refuses."""
        found: dict[str, str | None] = {}
        for column in columns:
            value = record.get(column)
            problem = text_problem(value)
            if problem and (strict or problem != EMPTY_TEXT):
                raise UserError(str(BrokenRow(self.name, self.source.unit, number, column, shortened(value), problem)))
            found[column] = None if problem else str(value)
        return found

    def check(self, columns: Sequence[str], strict: bool) -> None:
        """Stops at the first row that cannot be read, before anything was predicted."""
        if missing := [str(no_column(self.source, column)) for column in columns if column not in self.columns]:
            raise UserError("\n".join(missing))
        for number, record in self.records():
            self.texts(number, record, columns, strict)

    @cached_property
    def column_types(self) -> dict[str, pa.DataType]:
        """The type of each column in a parquet file: its own, or one that fits all values, or else text."""
        if isinstance(self.source, ParquetSource):
            return dict(zip(self.columns, pq.read_schema(self.source.file).types, strict=True))
        kinds: dict[str, set[str]] = {column: set() for column in self.columns}
        for _, record in self.records():
            for column, value in record.items():
                if value is not None:
                    kinds[column].add(_kind(value))
        return {
            column: next((fits for held, fits in COLUMN_TYPES if found and found <= held), pa.string())
            for column, found in kinds.items()
        }

    @cached_property
    def dialect(self) -> Dialect | None:
        """How to write rows as this delimited file has them; None for other formats. Nothing else asks the reader.

        Always in UTF-8: text of other encodings gets the byte order mark by which Excel, where it often comes from,
        knows UTF-8.
        """
        if not isinstance(self.source, DelimitedSource):
            return None
        delimiter, _ = self.source.dialect
        with self.source.file.open("rb") as content:
            marked = content.read(3) == codecs.BOM_UTF8
        plain = not marked and codecs.lookup(self.source.encoding).name in ("ascii", "utf-8", "utf-8-sig")
        return Dialect(delimiter if len(self.columns) > 1 else None, "utf-8" if plain else "utf-8-sig")


def _named(source: Source) -> tuple[str, ...]:
    """The columns, all different: the second and later ones without a name are called by their place."""
    names = list(source.columns)
    nameless = [place for place, name in enumerate(names) if not name]
    if len(nameless) > 1 and not isinstance(source, DelimitedSource):
        raise UserError(f"{source.name}: {len(nameless):,} columns have no name; give each column a name of its own")
    taken = set(names)
    for place in nameless[1:]:
        name = f"unnamed_{place + 1}"
        while name in taken:
            name += "_"
        taken.add(name)
        names[place] = name
    return tuple(names)


def _readable(row: tuple[int, Any] | BrokenRow) -> tuple[int, Any]:
    if isinstance(row, BrokenRow):
        raise UserError(str(row))
    return row


def _kind(value: object) -> str:
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int) and -(2**63) <= value < 2**63:
        return "integer" if abs(value) <= LARGEST_EXACT else "large integer"
    return "float" if isinstance(value, float) else "text"
