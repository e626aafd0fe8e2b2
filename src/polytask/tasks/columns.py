"""What a column of a file looks like, from its name and its first values: an id, a text, a label. Knows no task."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any

from polytask.tasks.dates import are_dates
from polytask.tasks.labels import class_name
from polytask.tasks.source import BrokenRow, Row, Source
from polytask.types import UserError

ROWS = 1_000
CELLS = 2_000_000  # of the first rows: of a file with 100,000 columns, fewer rows are looked at
MOST_GUESSED_CLASSES = 100
LABEL_NAMES = """
    label labels gold_label target class category sentiment opinion is_duplicate duplicate is_paraphrase paraphrase
    similarity relatedness score rating stars entailment acceptability acceptable quality polarity emotion intent topic
    kind type toxic spam grade y
"""
TEXT_NAMES = """
    text sentence question phrase review comment document content body message tweet post utterance query passage
    premise hypothesis context answer description headline title abstract summary string input
"""
PAIR_NAMES = [{"premise", "hypothesis"}, {"question", "sentence"}, {"question", "answer"}, {"query", "passage"}]
PAIR_NAMES += [{"query", "document"}, {"context", "question"}, {"source", "target"}]
ID_NAMES = re.compile(
    r"(?i:(.*[_ -])?(id|idx|index|guid|uuid)\d?|[a-z]?id\d?|no|nr|row|unnamed: \d+)|.*[a-z](Id|ID)\d?"
)


ABOUT_LABELS = {"confidence", "probability", "prob", "vote", "count", "annotator", "by"}
"""Words of columns that say something about a label, as topic_confidence does."""


@dataclass(frozen=True)
class Column:
    """What the first rows have in one column."""

    name: str
    values: list[str]
    """Those that are not empty, as text."""

    @cached_property
    def different(self) -> int:
        return len({class_name(value) for value in self.values})

    @cached_property
    def mean_length(self) -> float:
        return sum(map(len, self.values)) / max(len(self.values), 1)

    @cached_property
    def numbers(self) -> list[float]:
        """All values as numbers, or nothing if one of them is no number."""
        try:
            found = [float(value) for value in self.values]
        except ValueError:
            return []
        return found if all(map(math.isfinite, found)) else []

    @cached_property
    def is_id(self) -> bool:
        """Nameless, named as an id, or a different whole number or a different single word in every row."""
        if not self.name or ID_NAMES.fullmatch(self.name):
            return True
        if self.different < max(len(self.values), 20):
            return False
        whole = all(number.is_integer() for number in self.numbers) and bool(self.numbers)
        return whole or not (self.numbers or any(" " in value.strip() for value in self.values))

    @cached_property
    def is_date(self) -> bool:
        return are_dates(self.name, self.values, self.numbers)

    @property
    def is_constant(self) -> bool:
        return self.different == 1

    @cached_property
    def is_unique(self) -> bool:
        """Another value in every row. Numbers with a fraction do not count: scores may all be different."""
        if self.different < len(self.values):
            return False
        if not self.numbers:
            return self.different > 2
        return self.different >= 20 and all(number.is_integer() for number in self.numbers)

    @cached_property
    def is_text(self) -> bool:
        """Words, and more than a few different ones."""
        letters = sum(any(map(str.isalpha, value)) for value in self.values)
        return not self.is_id and letters > 0.8 * len(self.values) > 0 and self.different > 1 and not self.is_date

    @cached_property
    def could_be_label(self) -> bool:
        if self.is_id or not self._could_be_any_label:
            return False
        return bool(self.numbers) or self.different <= max(2, min(MOST_GUESSED_CLASSES, len(self.values) // 2))

    @cached_property
    def could_be_named_label(self) -> bool:
        """Less is asked of a column that is called a label: that its values are short, and not words of a text."""
        return self._could_be_any_label and (self.could_be_label or not self.is_text)

    @property
    def _could_be_any_label(self) -> bool:
        never = not self.values or self.is_constant or self.is_unique or self.is_date
        return not never and self.mean_length <= 40


def columns_of(source: Source) -> list[Column]:
    """The source's columns with the values of its first rows.

    A column with the same value in all of them is followed through the whole source, because files are often sorted
    by their label: of later rows, it gets every value that it has not had.
    """
    names = source.columns
    entries = source.rows(names, needed=())
    first = islice(entries, max(10, min(ROWS, CELLS // max(len(names), 1))))
    rows = [row[1] for row in first if not isinstance(row, BrokenRow)]
    if not rows:
        raise UserError(
            f"{source.name}: none of the first {ROWS:,} rows can be read; expected rows below a header line"
        )
    columns = [
        Column(name, [text for value in values if (text := _as_text(value))])
        for name, values in zip(names, zip(*rows, strict=True), strict=True)
    ]
    constant = {place: column.values[0] for place, column in enumerate(columns) if column.is_constant}
    for place, values in (_later_values(constant, entries) if constant else {}).items():
        columns[place] = Column(names[place], columns[place].values + values)
    return columns


def _later_values(first: Mapping[int, str], rows: Iterator[Row | BrokenRow]) -> dict[int, list[str]]:
    """Of columns with these values so far, every other one that the rest of the rows has, up to a hundred."""
    known = {place: {class_name(value)} for place, value in first.items()}
    later: dict[int, list[str]] = {place: [] for place in first}
    for row in rows:
        if isinstance(row, BrokenRow):
            continue
        for place, names in known.items():
            text = _as_text(row[1][place])
            if text and len(names) <= MOST_GUESSED_CLASSES and (name := class_name(text)) not in names:
                names.add(name)
                later[place].append(text)
    return later


def _as_text(value: Any) -> str:
    """A value as text; nothing for one that is empty, not a number, a list or a table."""
    if not isinstance(value, str | int | float) or value != value:
        return ""
    text = str(value)
    return text if text.strip() else ""


def rank(name: str, names: str) -> int | None:
    """How early a column's name stands in the list: exactly, without its number or letter, or with a word around it."""
    plain = name.strip().lower().replace("-", "_").replace(" ", "_")
    stem = re.sub(r"_?(\d+|_[ab])$", "", plain)
    for place, candidate in enumerate(names.split()):
        if candidate in (plain, stem) or (len(candidate) > 3 and candidate in plain.split("_")):
            return place
    return None


def likeness(name: str, task: str) -> int | None:
    """How much a column's name is like a task's: 0 the same, 1 with more words, 2 with fewer, None not at all."""
    words, wanted = _words(name), _words(task)
    if not words or not wanted:
        return None
    if words == wanted:
        return 0
    if wanted < words:
        return None if words & ABOUT_LABELS else 1
    return 2 if words < wanted else None


def _words(name: str) -> set[str]:
    """The words of is_urgent, isUrgent or `Is urgent`, in the singular."""
    words = re.findall(r"[A-Z]?[^\W\d_A-Z]+|[A-Z]+(?![^\W\d_A-Z])|\d+", name)
    return {word.lower().removesuffix("s") if len(word) > 3 else word.lower() for word in words}


def first_pair(names: Sequence[str]) -> tuple[int, int] | None:
    """The places of the first two names that make a pair: question1 and question2, or premise and hypothesis.

    Each name is looked up among the others by what its partner would be called, so that many names take no longer
    than they must.
    """
    by_stem: dict[str, list[int]] = {}
    by_name: dict[str, int] = {}
    for place, name in enumerate(names):
        by_stem.setdefault(_stem(name), []).append(place)
        by_name.setdefault(name.lower(), place)
    by_stem.pop("", None)
    found = []
    for places in by_stem.values():
        other = next((place for place in places if names[place] != names[places[0]]), None)
        if other is not None:
            found.append((places[0], other))
    for a, b in map(sorted, PAIR_NAMES):
        if a in by_name and b in by_name:
            first, second = sorted((by_name[a], by_name[b]))
            found.append((first, second))
    return min(found, default=None)


def _stem(name: str) -> str:
    """text for text_a, question for question2 and for `second question`."""
    return re.sub(r"[ _-]?([12]|[aAbB])$|^(first|second)[ _-]?", "", name)
