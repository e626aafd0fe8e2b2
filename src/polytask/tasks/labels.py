"""Converts labels between the file, the numbers in a store, and what heads need. Knows no file and no text.

A stored label is a class's number (in order of appearance, or in the recipe's order), 0 or 1 for no and yes, the score
as it is in the file, or 0 for plain text, which has no labels.
"""

import math
import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from polytask.settings import TaskSpec
from polytask.types import YES_NO, LabelSpace, UserError

YES = frozenset({"1", "true", "yes", "y"})
NO = frozenset({"0", "false", "no", "n"})
MOST_CLASSES = 10_000  # more different labels than this are texts or ids, and would not fit in memory either
LEAST_DEVIATION = 1e-6  # of scores, as a share of their range; with less they are all the same score
NUMBER = re.compile(r"([+-]?)(0|[1-9][0-9]*)(?:\.([0-9]+))?")


class LabelProblem(ValueError):
    """A label that cannot be used; the message says why."""


class LabelReader:
    """Turns the raw labels of one split into numbers."""

    def __init__(self, spec: TaskSpec, training_classes: Sequence[str] | None = None):
        self._kind = spec.kind
        self._range = score_range(spec) if spec.kind == "score" else (0.0, 1.0)
        given = given_classes(spec) if spec.kind == "classes" else None
        first = "dev" if spec.train is None else "training"
        self._closed = "not one of the task's classes" if given else f"not among the labels of the {first} rows"
        known = given if given is not None else training_classes
        self._growing = known is None
        self._numbers = {name: number for number, name in enumerate(known or ())}
        self._seen: dict[str, int | float] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """The classes, each at its number."""
        return tuple(self._numbers)

    def read(self, value: object) -> int | float:
        """Returns the label as a number; raises LabelProblem if it cannot be used."""
        if not isinstance(value, str):
            return self._read(value)
        number = self._seen.get(value)  # a label that was read before need not be parsed again
        if number is None:
            number = self._read(value)
            if len(self._seen) < MOST_CLASSES:
                self._seen[value] = number
        return number

    def _read(self, value: object) -> int | float:
        empty = not value.strip() if isinstance(value, str) else value is None or value != value  # NaN != NaN
        if empty:
            raise LabelProblem("the label is empty")
        if not isinstance(value, str | int | float):
            raise LabelProblem("a list or table; expected a name or a number")
        if self._kind == "score":
            return _score(value, *self._range)
        name = class_name(value)
        if self._kind == "yes_no":
            return _yes_no(name)
        if name not in self._numbers:
            if not self._growing:
                raise LabelProblem(f"{self._closed}; expected {_listed(self.names)}")
            if len(self._numbers) == MOST_CLASSES:
                raise UserError(f"more than {MOST_CLASSES:,} different labels; is this the label column?")
            self._numbers[name] = len(self._numbers)
        return self._numbers[name]


def class_name(value: str | int | float) -> str:
    """Returns the name of a class: 3, "3" and " 3.0 " are all "3"."""
    if isinstance(value, bool):
        return str(value).lower()
    text = str(value).strip()
    number = NUMBER.fullmatch(text)
    if number is None:
        return text
    sign, whole, fraction = number[1], number[2], (number[3] or "").rstrip("0")
    plain = f"{whole}.{fraction}" if fraction else whole
    return f"-{plain}" if sign == "-" and plain != "0" else plain


def sorted_classes(names: Sequence[str]) -> tuple[str, ...]:
    """Sorts classes as numbers if all are numbers, else alphabetically."""
    if all(NUMBER.fullmatch(name) for name in names):
        return tuple(sorted(names, key=float))
    return tuple(sorted(names))


def given_classes(spec: TaskSpec) -> tuple[str, ...] | None:
    """Returns the recipe's list of classes, checked; None if it has none."""
    if spec.classes is None:
        return None
    names = tuple(class_name(name) for name in spec.classes)
    if len(set(names)) < len(names) or len(names) < 2:
        raise UserError(f"task {spec.name!r}: classes must be two or more different names, found {list(spec.classes)}")
    return names


def score_range(spec: TaskSpec) -> tuple[float, float]:
    """Returns the recipe's range of scores, checked."""
    if spec.range is None:
        raise UserError(f"task {spec.name!r}: kind score needs a `range`, for example [0, 5]")
    low, high = spec.range
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise UserError(f"task {spec.name!r}: range must be the lowest and the highest score, found {list(spec.range)}")
    return float(low), float(high)


def label_space(
    spec: TaskSpec, names: Sequence[str], vocabulary: int = 0, stored: npt.NDArray[np.generic] | None = None
) -> LabelSpace:
    """Returns the task's label space.

    `names` and `stored` are the classes and labels of its training rows (of its dev rows if it has none), `vocabulary`
    is the size of the vocabulary, for plain text. Scores of a task that is not trained are not standardized.
    """
    if spec.kind == "text":
        return LabelSpace("text", vocabulary=vocabulary)
    if spec.kind == "yes_no":
        return YES_NO
    if spec.kind == "score":
        low, high = score_range(spec)
        by = standardization(stored, high - low) if spec.standardize and spec.trained and stored is not None else None
        return LabelSpace("score", low=low, high=high, standardized_by=by)
    classes = given_classes(spec) or sorted_classes(names)
    if len(classes) < 2:
        found = f"only the class {classes[0]!r}" if classes else "no labels"
        raise UserError(
            f"{spec.train or spec.dev}: column {spec.label!r} of task {spec.name!r} has {found}; expected two or more "
            "classes"
        )
    return LabelSpace("classes", classes)


def standardization(scores: npt.NDArray[np.generic], span: float) -> tuple[float, float] | None:
    """Returns mean and standard deviation of the training scores; None if they are all the same score."""
    values = scores.astype(np.float64)
    deviation = float(values.std())
    return (float(values.mean()), deviation) if deviation > LEAST_DEVIATION * span else None


def as_targets(
    space: LabelSpace, names: Sequence[str], stored: npt.NDArray[np.generic]
) -> npt.NDArray[np.int64] | npt.NDArray[np.float32]:
    """Converts stored numbers to what heads need: the class's index, 0.0 or 1.0, or the score scaled to [0, 1]."""
    if space.kind == "text":
        return stored.astype(np.int64)
    if space.kind == "classes":
        indices = np.array([space.classes.index(name) for name in names], dtype=np.int64)
        return indices[stored.astype(np.int64)]
    if space.kind == "yes_no":
        return stored.astype(np.float32)
    scaled = (stored.astype(np.float64) - space.low) / (space.high - space.low)
    return scaled.astype(np.float32)


def as_label(kind: str, names: Sequence[str], stored: int | float) -> str | float | None:
    """Converts a stored number to a label: the class's name, yes or no, or the score; None for plain text."""
    if kind == "text":
        return None
    if kind == "score":
        return float(stored)
    return (YES_NO.classes if kind == "yes_no" else names)[int(stored)]


def _yes_no(name: str) -> int:
    if name.lower() in YES:
        return 1
    if name.lower() in NO:
        return 0
    raise LabelProblem("neither yes nor no; expected 1/0, true/false, yes/no or y/n")


def _score(value: str | int | float, low: float, high: float) -> float:
    try:
        score = math.nan if isinstance(value, str) and "_" in value else float(value)
    except (ValueError, OverflowError):
        score = math.nan
    if not low <= score <= high:
        what = "outside the range" if math.isfinite(score) else "not a number"
        raise LabelProblem(f"{what}; expected a number from {low:g} to {high:g}")
    return score


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "")
