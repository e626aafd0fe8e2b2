"""What a column of a file looks like, from its name and its first values: an id, a text, a label. Knows no task."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from polytask.tasks.labels import class_name
from polytask.tasks.source import BrokenRow, Source
from polytask.types import UserError

ROWS = 1_000
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


@dataclass(frozen=True)
class Column:
    """What the first rows have in one column."""

    name: str
    values: list[str]
    """Those that are not empty, as text."""

    @property
    def different(self) -> int:
        return len({class_name(value) for value in self.values})

    @property
    def mean_length(self) -> float:
        return sum(map(len, self.values)) / max(len(self.values), 1)

    @property
    def numbers(self) -> list[float]:
        """All values as numbers, or nothing if one of them is no number."""
        try:
            found = [float(value) for value in self.values]
        except ValueError:
            return []
        return found if all(map(math.isfinite, found)) else []

    @property
    def is_id(self) -> bool:
        """Nameless, named as an id, or a different whole number or a different single word in every row."""
        if not self.name or ID_NAMES.fullmatch(self.name):
            return True
        if self.different < max(len(self.values), 20):
            return False
        whole = all(number.is_integer() for number in self.numbers) and bool(self.numbers)
        return whole or not (self.numbers or any(" " in value.strip() for value in self.values))

    @property
    def is_text(self) -> bool:
        """Words, and more than a few different ones."""
        letters = sum(any(map(str.isalpha, value)) for value in self.values)
        return not self.is_id and letters > 0.8 * len(self.values) > 0 and self.different > 1

    @property
    def could_be_label(self) -> bool:
        if self.is_id or not self.values or self.mean_length > 40:
            return False
        return bool(self.numbers) or self.different <= max(2, min(MOST_GUESSED_CLASSES, len(self.values) // 2))

    @property
    def could_be_named_label(self) -> bool:
        """Less is asked of a column that is called a label: that its values are short, and not words of a text."""
        return bool(self.values) and self.mean_length <= 40 and (self.could_be_label or not self.is_text)


def columns_of(source: Source) -> list[Column]:
    """The source's columns with the values of its first rows."""
    names = source.columns
    rows = [row[1] for row in islice(source.rows(names, needed=()), ROWS) if not isinstance(row, BrokenRow)]
    if not rows:
        raise UserError(
            f"{source.name}: none of the first {ROWS:,} rows can be read; expected rows below a header line"
        )
    columns = []
    for name, values in zip(names, zip(*rows, strict=True), strict=True):
        plain = [value for value in values if isinstance(value, str | int | float) and value == value]
        columns.append(Column(name, [text for text in map(str, plain) if text.strip()]))
    return columns


def rank(name: str, names: str) -> int | None:
    """How early a column's name stands in the list: exactly, without its number or letter, or with a word around it."""
    plain = name.strip().lower().replace("-", "_").replace(" ", "_")
    stem = re.sub(r"_?(\d+|_[ab])$", "", plain)
    for place, candidate in enumerate(names.split()):
        if candidate in (plain, stem) or (len(candidate) > 3 and candidate in plain.split("_")):
            return place
    return None


def pair_by_name(a: str, b: str) -> bool:
    """Names such as question1 and question2, text_a and text_b, or premise and hypothesis."""
    return (_stem(a) == _stem(b) != "" and a != b) or {a.lower(), b.lower()} in PAIR_NAMES


def _stem(name: str) -> str:
    return re.sub(r"[ _-]?([12]|[aAbB])$|^(first|second)[ _-]?", "", name)


def first_pair_by_name(names: Sequence[str]) -> tuple[int, int] | None:
    """The places of the first two names that are a pair, in a time that grows with their number and not its square."""
    groups: dict[str | int, list[int]] = {}
    for place, name in enumerate(names):
        own: list[str | int] = [number for number, pair in enumerate(PAIR_NAMES) if name.lower() in pair]
        for group in [*own, _stem(name)]:  # only names of one group can be a pair
            groups.setdefault(group, []).append(place)
    pairs = [
        (places[0], other)
        for places in groups.values()
        if (other := next((p for p in places[1:] if pair_by_name(names[places[0]], names[p])), None)) is not None
    ]
    return min(pairs, default=None)
