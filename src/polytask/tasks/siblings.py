"""Finds the dev file that belongs to a training file by its name. Knows names and columns; knows no task."""

import re
from collections.abc import Iterator, Sequence

from polytask.tasks.reading import open_source, split_sheet
from polytask.tasks.sources.sheets import SheetSource
from polytask.tasks.sources.source import no_column
from polytask.types import UserError

TRAIN = re.compile("train(ing)?", re.IGNORECASE)
DEV_NAMES = ("dev", "validation", "valid", "val", "test")


def find_dev(train: str, given: str | None, columns: Sequence[str]) -> tuple[str | None, str]:
    """Returns the dev source with these columns and the reason: the given one, or one next to the training source."""
    if given is not None:
        source = open_source(given)
        for column in columns:
            if column not in source.columns:
                raise no_column(source, column)
        return given, f"dev: {given}, as given"
    sibling = _sibling(train, columns)
    if sibling is not None:
        return sibling, f"dev: {sibling}, found next to it"
    return None, "dev: not found; no dev, validation or test file with these columns next to it"


def _sibling(train: str, columns: Sequence[str]) -> str | None:
    """Returns the dev source whose name differs from the training source's in one word, if it has the columns."""
    for candidate in _sibling_names(train):
        try:
            source = open_source(candidate)
            if set(columns) <= set(source.columns) and not _is_same_sheet(source, train):
                return candidate
        except UserError:
            continue
    return None


def _is_same_sheet(source: object, train: str) -> bool:
    """Whether the source is the training sheet itself: the first sheet of a workbook may be called dev or test."""
    return isinstance(source, SheetSource) and source.fingerprint() == open_source(train).fingerprint()


def _sibling_names(train: str) -> Iterator[str]:
    """Yields dev.csv for train.csv, reviews-dev.csv for reviews.csv, book.xlsx#dev for book.xlsx#train or book.xlsx."""
    is_sheet = split_sheet(train)[1] is not None
    head, mark, name = train.rpartition("#") if train.startswith("hub:") or is_sheet else train.rpartition("/")
    is_file = not is_sheet and not train.startswith(("hub:", "sample:"))
    stem, dot, ending = name.rpartition(".") if is_file else (name, "", "")
    matches = list(TRAIN.finditer(stem))
    for dev in DEV_NAMES:
        if matches:
            yield f"{head}{mark}{stem[: matches[-1].start()]}{dev}{stem[matches[-1].end() :]}{dot}{ending}"
        elif dot:
            yield f"{head}{mark}{stem}-{dev}{dot}{ending}"
    if ending.lower() in ("xlsx", "xlsm"):
        yield from (f"{train}#{dev}" for dev in DEV_NAMES)
