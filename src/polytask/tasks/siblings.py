"""The dev file that belongs to a training file, found by its name. Knows names and columns; knows no task."""

import re
from collections.abc import Iterator, Sequence

from polytask.tasks.reading import open_source, split_sheet
from polytask.tasks.sheets import SheetSource
from polytask.tasks.source import no_column
from polytask.types import UserError

DEV_NAMES = ("dev", "validation", "valid", "val", "test")


def find_dev(train: str, given: str | None, columns: Sequence[str]) -> tuple[str | None, str]:
    """The dev source with these columns, and the reason for it: the one given, or one beside the training source."""
    if given is not None:
        source = open_source(given)
        for column in columns:
            if column not in source.columns:
                raise no_column(source, column)
        return given, f"dev: {given}, as given"
    found = _sibling(train, columns)
    if found is not None:
        return found, f"dev: {found}, found beside it"
    return None, "dev: no dev, validation or test file with these columns beside it"


def _sibling(train: str, columns: Sequence[str]) -> str | None:
    """The dev source whose name differs from the training source's in that one word, and that has the columns."""
    for candidate in _sibling_names(train):
        try:
            source = open_source(candidate)
            if set(columns) <= set(source.columns) and not _is_same_sheet(source, train):
                return candidate
        except UserError:
            continue
    return None


def _is_same_sheet(source: object, train: str) -> bool:
    """Whether the workbook's first sheet, which stands for the workbook, is itself called dev or test."""
    return isinstance(source, SheetSource) and source.fingerprint() == open_source(train).fingerprint()


def _sibling_names(train: str) -> Iterator[str]:
    """train.csv -> dev.csv, reviews.csv -> reviews-dev.csv, book.xlsx#train or book.xlsx -> book.xlsx#dev."""
    is_sheet = split_sheet(train)[1] is not None
    head, mark, name = train.rpartition("#") if train.startswith("hub:") or is_sheet else train.rpartition("/")
    is_file = not is_sheet and not train.startswith(("hub:", "sample:"))
    stem, dot, ending = name.rpartition(".") if is_file else (name, "", "")
    found = list(re.finditer("train(ing)?", stem, re.IGNORECASE))
    for dev in DEV_NAMES:
        if found:
            yield f"{head}{mark}{stem[: found[-1].start()]}{dev}{stem[found[-1].end() :]}{dot}{ending}"
        elif dot:
            yield f"{head}{mark}{stem}-{dev}{dot}{ending}"
    if ending.lower() in ("xlsx", "xlsm"):
        yield from (f"{train}#{dev}" for dev in DEV_NAMES)
