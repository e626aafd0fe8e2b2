"""Classifies the columns of a file by their names and first values: id, text or label. Knows no task."""

import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any

from polytask.kinds.names import (
    NUMBER,
    SEPARATORS,
    WRITTEN_NUMBER,
    LabelProblem,
    class_name,
    is_empty,
    is_list,
    split_names,
)
from polytask.tasks.dates import are_dates
from polytask.tasks.sources.source import BrokenRow, Row, Source
from polytask.types import UserError

ROWS = 1_000
CELLS = 2_000_000  # in the first rows: of a file with 100,000 columns, fewer rows are read
MOST_GUESSED_CLASSES = 100
LABEL_NAMES = """
    label labels gold_label target class category sentiment opinion is_duplicate duplicate is_paraphrase paraphrase
    similarity relatedness score rating stars entailment acceptability acceptable quality polarity emotion intent topic
    kind type toxic spam grade y topics categories tags
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
"""Words in the names of columns about a label, such as topic_confidence."""


@dataclass(frozen=True)
class Column:
    """One column of the first rows."""

    name: str
    values: list[str]
    """The values that are not empty, as text."""
    blanks: int = 0
    """The number of empty values."""

    @cached_property
    def different(self) -> int:
        return len({class_name(value) for value in self.values})

    @cached_property
    def mean_length(self) -> float:
        return sum(map(len, self.values)) / max(len(self.values), 1)

    @cached_property
    def numbers(self) -> list[float]:
        """All values as numbers; empty if any of them is not a finite number."""
        try:
            numbers = [float(value) for value in self.values]
        except ValueError:
            return []
        return numbers if all(map(math.isfinite, numbers)) else []

    @cached_property
    def has_written_numbers(self) -> bool:
        """Whether all values are numbers, but some are not written like 1234.5, and are therefore read as names."""
        written = all(WRITTEN_NUMBER.fullmatch(value.strip()) for value in self.values)
        return written and bool(self.values) and not self.numbers and not self.is_date

    @cached_property
    def is_id(self) -> bool:
        """Whether it has no name, the name of an id, or a different integer or single word in every row."""
        if not self.name or ID_NAMES.fullmatch(self.name):
            return True
        if self.different < max(len(self.values), 20):
            return False
        whole = all(number.is_integer() for number in self.numbers) and bool(self.numbers)
        return whole or not (self.numbers or any(" " in value.strip() for value in self.values))

    @cached_property
    def is_date(self) -> bool:
        return are_dates(self.name, self.values, self.numbers)

    @cached_property
    def separator(self) -> str | None:
        """What separates several names in one value, if the names repeat; "" for JSON lists, None for one name."""
        if self.values and all(map(is_list, self.values)):
            return "" if self._repeats("") else None
        several = (mark for mark in SEPARATORS if sum(mark in value for value in self.values) > 0.05 * len(self.values))
        mark = next(several, None)
        return mark if mark is not None and self._repeats(mark) else None

    def names(self, separator: str) -> Counter[str]:
        """Counts the names in all values, which a separator separates."""
        try:
            return Counter(name for value in self.values for name in split_names(value, separator))
        except LabelProblem:
            return Counter()

    def _repeats(self, separator: str) -> bool:
        """Whether a few short names repeat in different combinations, unlike the words of a text or decimal commas."""
        names = self.names(separator)
        if not 2 <= len(names) <= min(MOST_GUESSED_CLASSES, self.different):
            return False
        short = all(len(name) <= 40 for name in names) and not all(map(NUMBER.fullmatch, names))
        return short and names.total() >= 3 * len(names) and not self.is_date

    @property
    def is_constant(self) -> bool:
        return self.different == 1

    @cached_property
    def is_unique(self) -> bool:
        """Whether every row has another value. Numbers with a fraction do not count: scores may all differ."""
        if self.different < len(self.values):
            return False
        if not self.numbers:
            return self.different > 2
        return self.different >= 20 and all(number.is_integer() for number in self.numbers)

    @cached_property
    def is_text(self) -> bool:
        """Whether the values are words, and not all the same."""
        letters = sum(any(map(str.isalpha, value)) for value in self.values)
        words = letters > 0.8 * len(self.values) > 0 and self.different > 1
        return words and not self.is_id and not self.is_date and not all(map(is_list, self.values))

    @cached_property
    def could_be_label(self) -> bool:
        if self.separator is not None:
            return True
        if self.is_id or not self._could_be_any_label:
            return False
        return bool(self.numbers) or self.different <= max(2, min(MOST_GUESSED_CLASSES, len(self.values) // 2))

    @cached_property
    def could_be_named_label(self) -> bool:
        """Whether a column with the name of a label can be one: its values must be short, and not words of a text.

        Words that repeat are not: there may be hundreds of classes. The questions of a data set repeat too, but their
        columns have the names of texts.
        """
        repeats = 2 * self.different <= len(self.values) and rank(self.name, TEXT_NAMES) is None
        fits = self.could_be_label or not self.is_text or repeats
        return self.separator is not None or (self._could_be_any_label and fits)

    @property
    def _could_be_any_label(self) -> bool:
        never = not self.values or self.is_constant or self.is_unique or self.is_date or all(map(is_list, self.values))
        return not never and self.mean_length <= 40


def first_rows(names: Sequence[str]) -> int:
    """Returns how many rows of a source with these columns are read to guess what it holds."""
    return max(10, min(ROWS, CELLS // max(len(names), 1)))


def columns_of(source: Source) -> list[Column]:
    """Returns the source's columns with the values of its first rows.

    A column with the same value in all of them is read through the whole source, because files are often sorted by
    their label: every new value of later rows is added to it.
    """
    names = source.columns
    entries = source.rows(names, needed=())
    first = islice(entries, first_rows(names))
    rows = [row[1] for row in first if not isinstance(row, BrokenRow)]
    if not rows:
        raise UserError(f"{source.name}: none of the first {ROWS:,} rows is valid; expected rows below a header line")
    columns = [
        Column(name, [text for value in values if (text := _as_text(value))], sum(map(is_empty, values)))
        for name, values in zip(names, zip(*rows, strict=True), strict=True)
    ]
    constant = {i: column.values[0] for i, column in enumerate(columns) if column.is_constant}
    for i, values in (_later_values(constant, entries) if constant else {}).items():
        columns[i] = Column(names[i], columns[i].values + values, columns[i].blanks)
    return columns


def _later_values(first: Mapping[int, str], rows: Iterator[Row | BrokenRow]) -> dict[int, list[str]]:
    """Returns, for columns with one value so far, every other value in the rest of the rows, at most a hundred."""
    known = {i: {class_name(value)} for i, value in first.items()}
    later: dict[int, list[str]] = {i: [] for i in first}
    for row in rows:
        if isinstance(row, BrokenRow):
            continue
        for i, names in known.items():
            text = _as_text(row[1][i])
            if text and len(names) <= MOST_GUESSED_CLASSES and (name := class_name(text)) not in names:
                names.add(name)
                later[i].append(text)
    return later


def _as_text(value: Any) -> str:
    """Returns a value as text, a list of names as JSON; "" for one that is empty, NaN, another list or a table."""
    if isinstance(value, list) and all(isinstance(item, str | int | float) for item in value):
        return json.dumps(value, ensure_ascii=False)
    if not isinstance(value, str | int | float) or value != value:
        return ""
    text = str(value)
    return text if text.strip() else ""


def rank(name: str, names: str) -> int | None:
    """Returns the index of a column's name in a list of names, also without its number or as one of its words."""
    plain = name.strip().lower().replace("-", "_").replace(" ", "_")
    stem = re.sub(r"_?(\d+|_[ab])$", "", plain)
    for i, candidate in enumerate(names.split()):
        if candidate in (plain, stem) or (len(candidate) > 3 and candidate in plain.split("_")):
            return i
    return None


def likeness(name: str, task: str) -> int | None:
    """Compares a column's name with a task's: 0 for the same, 1 with more words, 2 with fewer, None for neither."""
    words, task_words = _words(name), _words(task)
    if not words or not task_words:
        return None
    if words == task_words:
        return 0
    if task_words < words:
        return None if words & ABOUT_LABELS else 1
    return 2 if words < task_words else None


def _words(name: str) -> set[str]:
    """Returns the words of is_urgent, isUrgent or `Is urgent`, in the singular."""
    words = re.findall(r"[A-Z]?[^\W\d_A-Z]+|[A-Z]+(?![^\W\d_A-Z])|\d+", name)
    return {word.lower().removesuffix("s") if len(word) > 3 else word.lower() for word in words}


def first_pair(names: Sequence[str]) -> tuple[int, int] | None:
    """Returns the indices of the first pair of names: question1 and question2, or premise and hypothesis.

    Each name is looked up by the name of its partner, so that the time is linear in the number of names.
    """
    by_stem: dict[str, list[int]] = {}
    by_name: dict[str, int] = {}
    for i, name in enumerate(names):
        by_stem.setdefault(_stem(name), []).append(i)
        by_name.setdefault(name.lower(), i)
    by_stem.pop("", None)
    pairs = []
    for indices in by_stem.values():
        other = next((i for i in indices if names[i] != names[indices[0]]), None)
        if other is not None:
            pairs.append((indices[0], other))
    for a, b in map(sorted, PAIR_NAMES):
        if a in by_name and b in by_name:
            first, second = sorted((by_name[a], by_name[b]))
            pairs.append((first, second))
    return min(pairs, default=None)


def _stem(name: str) -> str:
    """Returns text for text_a, and question for question2 and `second question`."""
    return re.sub(r"[ _-]?([12]|[aAbB])$|^(first|second)[ _-]?", "", name)
