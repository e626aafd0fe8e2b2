"""Delimited files (csv, tsv) as a source of rows. Delimiter and quoting are detected unless given."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path

from polytask.disk.hashing import sha256
from polytask.tasks.sources.dialect import DECLARED, DELIMITERS, Quoting, describe_dialect, find_dialect, parse
from polytask.tasks.sources.lines import read_lines
from polytask.tasks.sources.source import BrokenRow, NoRows, Row, Unit, checked_columns
from polytask.types import UserError

LONE_RETURN = re.compile(r"\r(?!\n)")


@dataclass(frozen=True)
class DelimitedSource:
    """A csv or tsv file with a header."""

    name: str
    file: Path
    delimiter: str | None
    quoting: Quoting | None
    encoding: str
    first_guess: str = ","
    unit: Unit = "line"

    def fingerprint(self) -> str:
        return sha256(self.file)

    @cached_property
    def dialect(self) -> tuple[str, Quoting]:
        """The delimiter and the quoting; the delimiter is NO_DELIMITER in a file of one column."""
        delimiter = _delimiter(self.name, self.delimiter) or self._declared_delimiter
        return find_dialect(self._lines, self.first_guess, delimiter, self.quoting)

    @cached_property
    def columns(self) -> tuple[str, ...]:
        first = next(parse(self._lines(), *self.dialect), None)
        if first is None:
            raise NoRows(f"{self.name}: the file is empty; expected a header line and rows")
        line, header = first
        if isinstance(header, str):
            raise UserError(f"{self.name}, line {line}: cannot read the header: {header}")
        return checked_columns(self.name, [name.strip() for name in header])

    def rows(self, columns: Sequence[str], needed: Sequence[str] | None = None) -> Iterator[Row | BrokenRow]:
        indices = {column: i for i, column in reversed(list(enumerate(self.columns)))}
        width = len(self.columns)
        # Several columns may have no name, so that not every column can be looked up by its name.
        picks = range(width) if columns == self.columns else [indices[column] for column in columns]
        records = parse(self._lines(), *self.dialect)
        next(records)
        line = 0
        for line, record in records:
            if isinstance(record, str):
                yield BrokenRow(self.name, self.unit, line, None, "", record)
            elif len(record) != width:
                problem = f"{len(record)} fields, expected {width} as in the header ({describe_dialect(*self.dialect)})"
                yield BrokenRow(self.name, self.unit, line, None, "", problem)
            else:
                yield line, [record[pick] for pick in picks]
        if not line:
            raise NoRows(f"{self.name}: no rows below the header line ({', '.join(self.columns)})")

    def _lines(self) -> Iterator[str]:
        """Yields the lines. A carriage return ends a line only in a file without line feeds.

        In other files a single one is part of a text. Python's csv module would end the row there, and does not quote
        it when it writes, so it is replaced by a space. Excel's `sep=;` becomes an empty line, which is not a row but
        counts as a line.
        """
        if self._has_line_feeds:
            for number, line in enumerate(read_lines(self.name, self.file, self.encoding, newline="\n")):
                if number == 0 and DECLARED.fullmatch(line):
                    yield "\n"
                else:
                    yield LONE_RETURN.sub(" ", line) if "\r" in line else line
        else:
            for number, line in enumerate(read_lines(self.name, self.file, self.encoding, newline="")):
                yield "\n" if number == 0 and DECLARED.fullmatch(line) else line

    @cached_property
    def _declared_delimiter(self) -> str | None:
        first = next(read_lines(self.name, self.file, self.encoding, newline=""), "")
        declared = DECLARED.fullmatch(first)
        return declared[1] if declared else None

    @cached_property
    def _has_line_feeds(self) -> bool:
        return any("\n" in line for line in islice(read_lines(self.name, self.file, self.encoding, newline=""), 1000))


def _delimiter(source: str, given: str | None) -> str | None:
    mark = DELIMITERS.get(given, given) if given is not None else None
    if mark is not None and (len(mark) != 1 or mark in '\r\n"'):
        raise UserError(f"{source}: delimiter must be one character, or {', '.join(DELIMITERS)}, found {given!r}")
    return mark
