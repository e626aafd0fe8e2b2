"""Delimited files (csv, tsv) as a source of rows. What is not told about a file is found out from it."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path

from polytask.tasks.dialect import DELIMITERS, Quoting, find_dialect, in_words, parse
from polytask.tasks.lines import read_lines
from polytask.tasks.source import BrokenRow, Row, Unit, checked_columns, file_fingerprint
from polytask.types import UserError

LONE_RETURN = re.compile(r"\r(?!\n)")


@dataclass(frozen=True)
class DelimitedSource:
    """A csv or tsv file with a header; what is not told about it is found out from it."""

    name: str
    file: Path
    delimiter: str | None
    quoting: Quoting | None
    encoding: str
    first_guess: str = ","
    unit: Unit = "line"

    def fingerprint(self) -> str:
        return file_fingerprint(self.file)

    @cached_property
    def dialect(self) -> tuple[str, Quoting]:
        return find_dialect(self._lines, self.first_guess, _delimiter(self.name, self.delimiter), self.quoting)

    @cached_property
    def columns(self) -> tuple[str, ...]:
        first = next(parse(self._lines(), *self.dialect), None)
        if first is None:
            raise UserError(f"{self.name}: the file is empty; expected a header line and rows")
        line, header = first
        if isinstance(header, str):
            raise UserError(f"{self.name}, line {line}: the header cannot be read: {header}")
        return checked_columns(self.name, [name.strip() for name in header])

    def rows(self, columns: Sequence[str], needed: Sequence[str] | None = None) -> Iterator[Row | BrokenRow]:
        places = {name: place for place, name in reversed(list(enumerate(self.columns)))}  # the first of each name
        picks, width = [places[column] for column in columns], len(self.columns)
        records = parse(self._lines(), *self.dialect)
        next(records)
        line = 0
        for line, record in records:
            if isinstance(record, str):
                yield BrokenRow(self.name, self.unit, line, None, "", record)
            elif len(record) != width:
                problem = f"{len(record)} fields, expected {width} as in the header ({in_words(*self.dialect)})"
                yield BrokenRow(self.name, self.unit, line, None, "", problem)
            else:
                yield line, [record[pick] for pick in picks]
        if not line:
            raise UserError(f"{self.name}: only a header line ({', '.join(self.columns)}); expected rows below it")

    def _lines(self) -> Iterator[str]:
        """Only a file without any other line end has its lines end at carriage returns.

        Elsewhere one that stands alone is part of a text, and Python's csv module, which would end the row there,
        does not put it in quotes when it writes: it becomes the space that it is to a reader.
        """
        if self._has_line_feeds:
            for line in read_lines(self.name, self.file, self.encoding, newline="\n"):
                yield LONE_RETURN.sub(" ", line) if "\r" in line else line
        else:
            yield from read_lines(self.name, self.file, self.encoding, newline="")

    @cached_property
    def _has_line_feeds(self) -> bool:
        return any("\n" in line for line in islice(read_lines(self.name, self.file, self.encoding, newline=""), 1000))


def _delimiter(source: str, given: str | None) -> str | None:
    mark = DELIMITERS.get(given, given) if given is not None else None
    if mark is not None and (len(mark) != 1 or mark in '\r\n"'):
        raise UserError(f"{source}: delimiter {given!r}; expected one character, or {', '.join(DELIMITERS)}")
    return mark
