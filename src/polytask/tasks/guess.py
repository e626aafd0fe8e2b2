"""What task a file seems to hold: its text and label columns, its kind, and why. Knows columns; knows no model."""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from polytask.tasks.columns import LABEL_NAMES, TEXT_NAMES, Column, columns_of, first_pair_by_name, rank
from polytask.tasks.labels import NO, NUMBER, YES, class_name, sorted_classes
from polytask.tasks.reading import open_source
from polytask.tasks.source import BrokenRow, Source
from polytask.types import LabelKind, TaskSpec, UserError

DEV_NAMES = ("dev", "validation", "valid", "val", "test")


@dataclass(frozen=True)
class Guess:
    """A task as a file seems to hold it."""

    spec: TaskSpec
    """Its `dev` is empty when no file with dev rows was found."""
    reasons: list[str]
    """Why, in plain words."""

    @property
    def has_dev(self) -> bool:
        return bool(self.spec.dev)


def guess_task(name: str, train: str) -> Guess:
    """The task that the file `train` seems to hold; its reasons say what was seen."""
    source = open_source(train)
    columns = columns_of(source)
    label, label_reason = _guess_label(source, columns)
    texts, text_reason = _guess_texts(source, [column for column in columns if column is not label])
    kind, kind_reason = _guess_kind(label)
    text_names = tuple(column.name for column in texts)
    spec = TaskSpec(name, kind, text_names, label.name, train, dev="")
    dev = _sibling(train, (*text_names, label.name))
    spec = replace(spec, dev=dev or "")
    if kind == "score":
        spec = replace(spec, range=_whole_range(spec))
        assert spec.range is not None
        kind_reason += f", range {spec.range[0]:g} to {spec.range[1]:g}"
    dev_reason = (
        f"dev: {dev}, found beside it" if dev else "dev: no dev, validation or test file with these columns beside it"
    )
    return Guess(spec, [text_reason, f"{label_reason}; {kind_reason}", dev_reason])


def _guess_label(source: Source, columns: Sequence[Column]) -> tuple[Column, str]:
    possible = [column for column in columns if column.could_be_label]
    named = [column for column in columns if rank(column.name, LABEL_NAMES) is not None and column.could_be_named_label]
    named.sort(key=lambda column: rank(column.name, LABEL_NAMES) or 0)
    if named:
        others = [repr(column.name) for column in possible if column is not named[0]]
        more = f" and {len(others) - 8} more" if len(others) > 8 else ""
        could = f" ({', '.join(others[:8])}{more} could be another task's)" if others else ""
        return named[0], f"label: column {named[0].name!r}, by its name{could}"
    if possible:
        best = min(reversed(possible), key=lambda column: column.different)
        return best, f"label: column {best.name!r}, because its values are few and short"
    raise UserError(
        f"{source.name}: no column looks like a label (a few different names, or numbers); its columns are: "
        f"{', '.join(filter(None, source.columns))}; write the task's `label` yourself"
    )


def _guess_texts(source: Source, columns: Sequence[Column]) -> tuple[list[Column], str]:
    words = [column for column in columns if column.is_text]
    texts = [column for column in words if column.different * 10 > len(column.values)] or words  # few: a category
    if not texts:
        raise UserError(
            f"{source.name}: no column looks like text; its columns are: {', '.join(filter(None, source.columns))}; "
            "write the task's `text` yourself"
        )
    places = first_pair_by_name([column.name for column in texts])
    if places is not None:
        pair = [texts[place] for place in places]
        return pair, f"text: columns {pair[0].name!r} and {pair[1].name!r}, a pair by their names"
    by_length = sorted(texts, key=lambda column: -column.mean_length)
    long = [column for column in texts if column.mean_length * 2 > by_length[0].mean_length]
    named = [column for column in by_length if rank(column.name, TEXT_NAMES) is not None]
    if len(long) == 2 and not (len(named) == 1 and named[0] in long):
        means = " and ".join(f"{column.mean_length:.0f}" for column in long)
        return (
            long,
            f"text: columns {long[0].name!r} and {long[1].name!r}, a pair of similar length ({means} characters)",
        )
    best = named[0] if named and named[0].mean_length * 4 > by_length[0].mean_length else by_length[0]
    return [best], f"text: column {best.name!r}, {best.mean_length:.0f} characters on average"


def _guess_kind(label: Column) -> tuple[LabelKind, str]:
    names = sorted_classes(tuple({class_name(value) for value in label.values}))
    rows = f"in {len(label.values):,} rows"
    if {name.lower() for name in names} <= YES | NO:
        return "yes_no", f"{' and '.join(names)} {rows}: yes_no"
    numbers = label.numbers
    if numbers and (any(not number.is_integer() for number in numbers) or len(names) > 20):
        return "score", f"numbers from {min(numbers):g} to {max(numbers):g}, {len(names)} different {rows}: score"
    what = "whole numbers" if all(NUMBER.fullmatch(name) for name in names) else "names"
    few = ", ".join(names[:8]) + (" ..." if len(names) > 8 else "")
    return "classes", f"{len(names)} different {what} {rows} ({few}): classes"


def _whole_range(spec: TaskSpec) -> tuple[float, float]:
    """The whole numbers around all scores of the files, not of the first rows only."""
    assert spec.label is not None
    low, high = math.inf, -math.inf
    for path in filter(None, (spec.train, spec.dev)):
        for row in open_source(path).rows([spec.label]):
            try:
                score = math.nan if isinstance(row, BrokenRow) else float(row[1][0])
            except (TypeError, ValueError):
                continue
            if math.isfinite(score):
                low, high = min(low, score), max(high, score)
    return float(math.floor(low)), float(math.ceil(high))


def _sibling(train: str, columns: Sequence[str]) -> str | None:
    """The dev source whose name differs from the training source's in that one word, and that has the columns."""
    for candidate in _sibling_names(train):
        try:
            if set(columns) <= set(open_source(candidate).columns):
                return candidate
        except UserError:
            continue
    return None


def _sibling_names(train: str) -> Iterator[str]:
    head, mark, name = train.rpartition("#") if train.startswith("hub:") else train.rpartition("/")
    stem, dot, ending = name.rpartition(".") if not train.startswith(("hub:", "sample:")) else (name, "", "")
    found = list(re.finditer("train(ing)?", stem, re.IGNORECASE))
    for dev in DEV_NAMES:
        if found:
            yield f"{head}{mark}{stem[: found[-1].start()]}{dev}{stem[found[-1].end() :]}{dot}{ending}"
        elif dot:
            yield f"{head}{mark}{stem}-{dev}{dot}{ending}"
