"""Reads a file of rows to predict, with all columns, and checks all rows before the first prediction.

Rows are read one by one, so that memory does not grow with the file.
"""

import codecs
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa

from polytask.serving.examples import Example, with_options
from polytask.tasks.rows import EMPTY_TEXT, text_problem, words_problem
from polytask.tasks.sources.conll import ConllSource
from polytask.tasks.sources.delimited import DelimitedSource
from polytask.tasks.sources.jsonl import JsonLinesSource
from polytask.tasks.sources.parquet import ParquetSource
from polytask.tasks.sources.source import BrokenRow, Source, no_column, shortened
from polytask.text.tagging import tags_problem
from polytask.types import UserError

Record = dict[str, Any]
LARGEST_EXACT = 2**53  # a float64 represents all integers up to this one exactly
COLUMN_TYPES = (
    ({"bool"}, pa.bool_()),
    ({"integer", "large integer"}, pa.int64()),
    ({"integer", "float"}, pa.float64()),
)
"""The kinds of values that each type of parquet column can store. A column with other kinds is written as text."""


@dataclass(frozen=True)
class Dialect:
    """The format of a delimited file."""

    delimiter: str | None
    """None if unknown, because the input has one column."""
    encoding: str


class InputFile:
    """A file to predict. Unlike training data, its rows have all columns of the file."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.name = source.name
        self.path: Path | None = getattr(source, "file", None)

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """All columns; for JSON Lines the keys of all lines, in the order of their first appearance."""
        if isinstance(self.source, JsonLinesSource):
            keys = dict.fromkeys(key for line in self.source.objects() for key in _checked(line)[1])
            return tuple(keys) or self.source.columns  # which raises an error if the file is empty
        return _named(self.source)

    @cached_property
    def written_columns(self) -> tuple[str, ...]:
        """The columns that a file of predictions repeats: a column of a CoNLL file that has two names only once."""
        return self.source.different_columns if isinstance(self.source, ConllSource) else self.columns

    def written(self, record: Record) -> Record:
        """The part of a row that a file of predictions repeats."""
        if not isinstance(self.source, ConllSource):
            return record
        return {column: record[column] for column in self.written_columns}

    def records(self) -> Iterator[tuple[int, Record]]:
        """Yields each row's number and its values by column. A JSON line has only its own keys."""
        columns = self.columns
        if isinstance(self.source, JsonLinesSource):
            known = frozenset(columns)
            for line in self.source.objects():
                number, record = _checked(line)
                if not record.keys() <= known:
                    raise UserError(f"{self.name}: the file changed while it was read; try again")
                yield number, record
        else:
            for row in self.source.rows(self.source.columns, needed=()):
                number, values = _checked(row)
                yield number, dict(zip(columns, values, strict=True))

    def texts(
        self, number: int, record: Record, columns: Sequence[str], strict: bool, of_words: Collection[str] = ()
    ) -> dict[str, Any]:
        """A row's texts by column: None for a missing or empty text, which is an error with `strict`.

        The columns in `of_words` may have a list of words instead of a text.
        """
        texts: dict[str, Any] = {}
        for column in columns:
            value = record.get(column)
            problem = words_problem(value) if column in of_words else text_problem(value)
            if problem and (strict or problem != EMPTY_TEXT):
                raise UserError(str(BrokenRow(self.name, self.source.unit, number, column, shortened(value), problem)))
            texts[column] = None if problem else tuple(value) if isinstance(value, list) else str(value)
        return texts

    def example(
        self,
        number: int,
        record: Record,
        columns: Sequence[str],
        has_options: bool,
        strict: bool,
        of_words: Collection[str] = (),
    ) -> Example:
        """A row as an example: the texts of these columns or, with options, that of the first and the options."""
        texts = self.texts(number, record, columns[:1] if has_options else columns, strict, of_words)
        if not has_options:
            return tuple(texts[column] for column in columns)
        where = f"{self.name}, {self.source.unit} {number}, column {', '.join(columns[1:])!r}"
        return with_options(texts[columns[0]], [record.get(column) for column in columns[1:]], where)

    def check(
        self,
        columns: Sequence[str],
        strict: bool,
        tagged: Sequence[tuple[Sequence[str], Sequence[str]]] = (),
        of_words: Collection[str] = (),
        options: Sequence[Sequence[str]] = (),
    ) -> None:
        """Reads all rows, and raises a UserError at the first one that cannot be read.

        `tagged` has text columns, each list with the columns of their words' tags; that list may be empty. `options`
        has the columns of tasks with options: that of the text, followed by those of the options.
        """
        named = dict.fromkeys([*columns, *(column for names in options for column in names)])
        if missing := [str(no_column(self.source, column)) for column in named if column not in self.columns]:
            raise UserError("\n".join(missing))
        for number, record in self.records():
            texts = self.texts(number, record, columns, strict, of_words)
            for names in options:
                self.example(number, record, names, has_options=True, strict=strict)
            for text, tags in {pair for names in tagged for pair in zip(*names, strict=False)}:
                self._check_tags(number, texts[text], tags, record.get(tags))

    def _check_tags(self, number: int, text: str | None, column: str, value: object) -> None:
        if text is not None and (problem := tags_problem(text, value)):
            raise UserError(str(BrokenRow(self.name, self.source.unit, number, column, shortened(value), problem)))

    @cached_property
    def column_types(self) -> dict[str, pa.DataType]:
        """The type of each column in a parquet output: its type in a parquet input, or one that fits all values."""
        if isinstance(self.source, ParquetSource):
            return dict(zip(self.columns, self.source.types, strict=True))
        kinds: dict[str, set[str]] = {column: set() for column in self.columns}
        for _, record in self.records():
            for column, value in record.items():
                if value is not None:
                    kinds[column].add(_kind(value))
        return {
            column: next((fits for stored, fits in COLUMN_TYPES if present and present <= stored), pa.string())
            for column, present in kinds.items()
        }

    @cached_property
    def dialect(self) -> Dialect | None:
        """How to write rows in the format of this delimited file; None for other formats.

        The encoding is always UTF-8. If the input has another encoding, the output gets a byte order mark: such files
        often come from Excel, which recognizes UTF-8 by it.
        """
        if not isinstance(self.source, DelimitedSource):
            return None
        delimiter, _ = self.source.dialect
        with self.source.file.open("rb") as content:
            marked = content.read(3) == codecs.BOM_UTF8
        plain = not marked and codecs.lookup(self.source.encoding).name in ("ascii", "utf-8", "utf-8-sig")
        return Dialect(delimiter if len(self.columns) > 1 else None, "utf-8" if plain else "utf-8-sig")


def _named(source: Source) -> tuple[str, ...]:
    """The columns with unique names: of several columns without a name, all but the first are numbered."""
    names = list(source.columns)
    nameless = [index for index, name in enumerate(names) if not name]
    if len(nameless) > 1 and not isinstance(source, DelimitedSource):
        raise UserError(f"{source.name}: {len(nameless):,} columns have no name; give each column its own name")
    taken = set(names)
    for index in nameless[1:]:
        name = f"unnamed_{index + 1}"
        while name in taken:
            name += "_"
        taken.add(name)
        names[index] = name
    return tuple(names)


def _checked(row: tuple[int, Any] | BrokenRow) -> tuple[int, Any]:
    if isinstance(row, BrokenRow):
        raise UserError(str(row))
    return row


def _kind(value: object) -> str:
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int) and -(2**63) <= value < 2**63:
        return "integer" if abs(value) <= LARGEST_EXACT else "large integer"
    return "float" if isinstance(value, float) else "text"
