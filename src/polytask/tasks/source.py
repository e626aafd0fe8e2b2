"""What a source of rows is, and what every format's source needs. Knows no format, no task and no label.

Memory stays flat whatever the size of a source. A row that cannot be read is a BrokenRow in the stream of rows; a
source that cannot be read is a UserError.
"""

import difflib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from polytask.types import UserError

Row = tuple[int, list[Any]]
Unit = Literal["line", "row"]

COLUMNS_NAMED = 50  # by the message about one that is not there
BATCH = 2000
"""Rows taken at once from a source that is stored by columns."""


@dataclass(frozen=True)
class BrokenRow:
    """A row that cannot be used, and why."""

    source: str
    unit: str
    """What `row` counts: line or row."""
    row: int
    column: str | None
    value: str
    problem: str

    def __str__(self) -> str:
        column = f", column {self.column!r}" if self.column is not None else ""
        value = f"{self.value!r}: " if self.value else ""
        return f"{self.source}, {self.unit} {self.row}{column}: {value}{self.problem}"


class Source(Protocol):
    """Rows with named columns."""

    @property
    def name(self) -> str:
        """As the user wrote it."""
        ...

    @property
    def unit(self) -> Unit:
        """What a row's number counts, from 1; a header line counts."""
        ...

    @property
    def columns(self) -> tuple[str, ...]: ...

    def rows(self, columns: Sequence[str], needed: Sequence[str] | None = None) -> Iterator[Row | BrokenRow]:
        """Each row's number and its values of these columns; None for one that is not there and not needed."""
        ...

    def fingerprint(self) -> str:
        """SHA-256 of the content."""
        ...


def no_column(source: Source, column: str) -> UserError:
    """The error that says which columns there are."""
    names = [name for name in source.columns if name]
    near = difflib.get_close_matches(column, names, 1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    more = f" and {len(names) - COLUMNS_NAMED:,} more" if len(names) > COLUMNS_NAMED else ""
    listed = (", ".join(names[:COLUMNS_NAMED]) or "(none named)") + more
    return UserError(f"{source.name}: no column {column!r}; its columns are: {listed}{hint}")


def shortened(value: object) -> str:
    """A value as an error shows it."""
    text = "" if value is None else str(value)
    return text if len(text) <= 80 else text[:79] + "…"


def checked_columns(source: str, names: Sequence[str]) -> tuple[str, ...]:
    """A nameless column is allowed, because pandas writes its index so."""
    twice = [name for name, count in Counter(names).items() if name and count > 1]
    if twice:
        raise UserError(f"{source}: the header has column {twice[0]!r} more than once; expected different names")
    return tuple(names)


def numbered(batches: Iterable[list[list[Any]]]) -> Iterator[Row]:
    """Columns of values, batch after batch, as rows with their numbers."""
    number = 0
    for batch in batches:
        for values in zip(*batch, strict=True):
            number += 1
            yield number, list(values)
