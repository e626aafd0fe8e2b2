"""Names of classes: how a file's values become names, their order, and their numbers. Imports no PyTorch."""

import ast
import json
import re
from collections.abc import Iterable, Sequence
from itertools import islice

from polytask.settings import TaskSpec
from polytask.types import LabelSpace, UserError

YES = frozenset({"1", "true", "yes", "y"})
NO = frozenset({"0", "false", "no", "n"})
MOST_CLASSES = 10_000  # more different labels than this are texts or ids, and would not fit in memory either
SEPARATORS = ("|", ";", ",")
"""Of several classes in one value, in order of preference: names of classes contain commas more often than bars."""
ROWS_GUESSED_FROM = 10_000
EMPTY_LABEL = "the label is empty"
NUMBER = re.compile(r"([+-]?)(0|[1-9][0-9]*)(?:\.([0-9]+))?")
WRITTEN_NUMBER = re.compile(
    r"[€$£¥]?\s?[+-]?(\d+([.,]\d+)?|\d{1,3}([., '\u00a0\u2019\u202f]\d{3})+([.,]\d+)?)\s?[%€$£¥]?"
)
"""A number as people write it, also with a decimal comma, thousands separators or a unit: 0,5 or 1.234,50 €."""
PLAIN_NUMBER = "written like 1234.5"


class LabelProblem(ValueError):
    """A label that cannot be used; the message says why."""


def is_empty(value: object) -> bool:
    """Whether a value is missing: None, NaN, or text without a visible character."""
    return not value.strip() if isinstance(value, str) else value is None or value != value  # NaN != NaN


def plain_value(value: object) -> str | int | float:
    """Returns the value if it is a name or a number; raises LabelProblem if it is empty, a list or a table."""
    if is_empty(value):
        raise LabelProblem(EMPTY_LABEL)
    if not isinstance(value, str | int | float):
        raise LabelProblem("a list or table; expected a name or a number")
    return value


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


def yes_or_no(name: str) -> int:
    """Returns 1 for yes and 0 for no, in any of their spellings."""
    if name.lower() in YES:
        return 1
    if name.lower() in NO:
        return 0
    raise LabelProblem("neither yes nor no; expected 1/0, true/false, yes/no or y/n")


def check_number_of_classes(spec: TaskSpec, classes: Sequence[str]) -> None:
    """Refuses a task with fewer than two classes."""
    if len(classes) < 2:
        found = f"only the class {classes[0]!r}" if classes else "no labels"
        raise UserError(
            f"{spec.train or spec.dev}: column {spec.label!r} of task {spec.name!r} has {found}; expected two or more "
            "classes"
        )


class ClassNumbers:
    """Numbers classes in the order of their appearance, or refuses those that are not among the known ones."""

    def __init__(self, spec: TaskSpec, known: LabelSpace | None) -> None:
        given = given_classes(spec)
        first = "dev" if spec.train is None else "training"
        self._closed = "not one of the task's classes" if given else f"not among the labels of the {first} rows"
        classes = given if given is not None else None if known is None else known.classes
        self._growing = classes is None
        self._numbers = {name: number for number, name in enumerate(classes or ())}

    @property
    def names(self) -> tuple[str, ...]:
        """The classes, each at its number."""
        return tuple(self._numbers)

    def number(self, name: str) -> int:
        """Returns the number of a class; raises LabelProblem if it is not one of the known classes."""
        if name not in self._numbers:
            if not self._growing:
                raise LabelProblem(f"{self._closed}; expected {_listed(self.names)}")
            if len(self._numbers) == MOST_CLASSES:
                raise UserError(f"more than {MOST_CLASSES:,} different labels; is this the label column?")
            self._numbers[name] = len(self._numbers)
        return self._numbers[name]


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "")


# --- several classes per row ------------------------------------------------------------------------------------------
def guess_separator(values: Iterable[object]) -> str:
    """Returns the first of the usual separators that occurs in the first labels; lists are left out."""
    texts = [value for value in islice(values, ROWS_GUESSED_FROM) if isinstance(value, str) and not is_list(value)]
    return next((mark for mark in SEPARATORS if any(mark in text for text in texts)), SEPARATORS[-1])


def split_names(value: object, separator: str) -> list[str]:
    """Returns the names in a label: a list, a JSON list, or names between separators; none for an empty label."""
    items: Iterable[object]
    if isinstance(value, list | tuple):
        items = value
    elif isinstance(value, str):
        items = parsed_list(value) if is_list(value) else value.split(separator)
    else:
        items = [] if is_empty(value) else [value]
    return list(dict.fromkeys(class_name(plain_value(item)) for item in items if not is_empty(item)))


def is_list(text: str) -> bool:
    return text.strip().startswith("[") and text.strip().endswith("]")


def parsed_list(text: str) -> list[object]:
    """Returns a JSON list, or a list as Python prints it, which is what pandas writes into a csv file."""
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        try:
            parsed = ast.literal_eval(text.strip())
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            parsed = None
    if not isinstance(parsed, list):
        raise LabelProblem('in brackets, but not a list; expected ["name", "name"]')
    return parsed
