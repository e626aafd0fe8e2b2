"""The record of one finding about a task's data. Knows no check."""

from dataclasses import dataclass
from typing import Literal

Severity = Literal["problem", "warning", "note"]

SEVERITIES: tuple[Severity, ...] = ("problem", "warning", "note")
"""The worst first."""
SINGULAR = {"appear": "appears", "are": "is", "have": "has", "repeat": "repeats"}
ROWS_NAMED = 10  # row numbers in a finding


@dataclass(frozen=True)
class Finding:
    """One finding about one task's data, in plain words."""

    severity: Severity
    """problem: scores would mislead, or nothing can be learned. warning: likely a mistake. note: good to know."""
    task: str
    split: str
    """train, dev or test; empty if it is about the whole task."""
    what: str
    """A short code, the same for every task and split."""
    sentence: str
    rows: tuple[int, ...]
    """The numbers of the first ten rows, as counted in the file."""
    count: int
    """The number of rows, or classes, that it is about."""

    def __str__(self) -> str:
        place = f"{self.task} {self.split}".strip()
        if not self.rows:
            return f"{place}: {self.sentence}"
        more = " ..." if self.count > len(self.rows) else ""
        word = "row" if self.count == 1 else "rows"
        return f"{place}: {self.sentence} ({word} {', '.join(map(str, self.rows))}{more})"


def rows_that(count: int, total: int, rest: str, first: bool = False) -> str:
    """Returns `12 of 1,101 rows (1.1 %) are ...` or `1 of the first 400 rows (0.2 %) is ...`.

    `rest` starts with a verb in the plural.
    """
    verb, _, what = rest.partition(" ")
    verb = SINGULAR[verb] if count == 1 else verb
    rows = f"{'the first ' if first else ''}{total:,} {'row' if total == 1 else 'rows'}"
    return f"{count:,} of {rows} ({in_percent(count, total)}) {verb} {what}"


def in_percent(count: int, total: int) -> str:
    """Formats a share as `1.1 %`; only exactly none and all are 0 % and 100 %."""
    percent = 100 * count / total
    if 0 < percent < 0.1:
        return "less than 0.1 %"
    if 99.9 < percent < 100:
        return "more than 99.9 %"
    return f"{percent:.1f} %" if percent < 10 or percent > 99 else f"{percent:.0f} %"
