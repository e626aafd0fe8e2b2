"""The interface of a source of rows, and the parts that every format needs. Knows no format, no task and no label.

Memory stays constant for a source of any size. A row that cannot be read is a BrokenRow among the rows; a source that
cannot be read is a UserError.
"""

import difflib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from polytask.types import UserError

Row = tuple[int, list[Any]]
Unit = Literal["line", "row"]

COLUMNS_NAMED = 50  # in the message about a missing column
BATCH = 2000
"""Rows read at once from a source that is stored by columns."""


@dataclass(frozen=True)
class BrokenRow:
    """A row that cannot be used, and the reason."""

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


class NoRows(UserError):
    """A source that is empty, or has only a header: an error for most, but one of many files may be so."""


class Source(Protocol):
    """Rows with named columns."""

    @property
    def name(self) -> str:
        """The source's name as the user wrote it."""
        ...

    @property
    def unit(self) -> Unit:
        """What a row's number counts, from 1, with the header line."""
        ...

    @property
    def columns(self) -> tuple[str, ...]: ...

    def rows(self, columns: Sequence[str], needed: Sequence[str] | None = None) -> Iterator[Row | BrokenRow]:
        """Yields each row's number and its values of these columns; None for a missing value that is not needed."""
        ...

    def fingerprint(self) -> str:
        """Returns the SHA-256 of the content."""
        ...


def no_column(source: Source, column: str) -> UserError:
    """Returns the error about a missing column, which lists the existing ones."""
    names = [name for name in source.columns if name]
    near = difflib.get_close_matches(column, names, 1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    more = f" and {len(names) - COLUMNS_NAMED:,} more" if len(names) > COLUMNS_NAMED else ""
    listed = (", ".join(names[:COLUMNS_NAMED]) or "(none has a name)") + more
    return UserError(f"{source.name}: no column {column!r}; its columns are: {listed}{hint}")


def shortened(value: object) -> str:
    """Shortens a value for an error message."""
    text = "" if value is None else str(value)
    return text if len(text) <= 80 else text[:79] + "…"


def checked_columns(source: str, names: Sequence[str]) -> tuple[str, ...]:
    """Returns the names if they are unique; several columns may have no name, as the index that pandas writes."""
    twice = [name for name, count in Counter(names).items() if name and count > 1]
    if twice:
        raise UserError(f"{source}: column names must be unique, found {twice[0]!r} more than once in the header")
    return tuple(names)


def numbered(batches: Iterable[list[list[Any]]]) -> Iterator[Row]:
    """Turns batches of columns into rows with their numbers."""
    number = 0
    for batch in batches:
        for values in zip(*batch, strict=True):
            number += 1
            yield number, list(values)
