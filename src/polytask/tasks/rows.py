"""Checks the texts and labels of a source's rows. Knows columns and labels; knows no format and no tokenizer."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from polytask.kinds.base import LabelReader
from polytask.kinds.names import LabelProblem, is_empty
from polytask.settings import TaskSpec
from polytask.tasks.sources.source import BrokenRow, Source, no_column, shortened
from polytask.text.tagging import tags_problem
from polytask.types import UserError

EMPTY_TEXT = "the text is empty"


class LabelledRow(NamedTuple):
    """A row that can be used."""

    row: int
    """Its number in the source."""
    texts: tuple[str, ...]
    label: int | float
    tags: tuple[str, ...] = ()
    """For each text, the tags of its words, if the task has columns with tags."""


class BlankRow(NamedTuple):
    """A row whose label is empty, in a task that skips such rows."""

    row: int
    """Its number in the source."""


def labelled_rows(spec: TaskSpec, source: Source, reader: LabelReader) -> Iterator[LabelledRow | BlankRow | BrokenRow]:
    """Yields the rows to train on or to score; a row that cannot be used is a BrokenRow."""
    columns = (*spec.text, *spec.tags, *spec.label_columns)
    skips_blanks = spec.skips_blanks and bool(spec.label_columns)
    _check_columns(source, columns)
    for entry in source.rows(columns, needed=(*spec.text, *spec.tags) if skips_blanks else None):
        if isinstance(entry, BrokenRow):
            yield entry
            continue
        row, values = entry
        if skips_blanks and all(map(is_empty, values[-len(spec.label_columns) :])):
            yield BlankRow(row)
            continue
        texts, tags = values[: len(spec.text)], values[len(spec.text) : len(spec.text) + len(spec.tags)]
        broken = _broken_text(source, row, spec.text, texts) or _broken_tags(source, row, spec.tags, texts, tags)
        if broken is not None:
            yield broken
            continue
        written = values[-1] if isinstance(spec.label, str) else values[len(spec.text) + len(spec.tags) :]
        try:
            label = 0 if spec.label is None else reader.read(written)
            yield LabelledRow(row, tuple(map(str, texts)), label, tuple(map(str, tags)))
        except LabelProblem as problem:
            yield BrokenRow(source.name, source.unit, row, _joined(spec), shortened(written), str(problem))
        except UserError as error:
            raise UserError(f"{source.name}, {source.unit} {row}, column {_joined(spec)!r}: {error}") from error


def label_values(spec: TaskSpec, source: Source) -> Iterator[object]:
    """Yields the value of the label column of each row, or a list of those of several label columns."""
    _check_columns(source, spec.label_columns)
    for entry in source.rows(spec.label_columns, needed=()):
        if not isinstance(entry, BrokenRow):
            yield entry[1][0] if isinstance(spec.label, str) else entry[1]


def _joined(spec: TaskSpec) -> str | None:
    return ", ".join(spec.label_columns) or None


def plain_texts(source: Source, columns: Sequence[str]) -> Iterator[str]:
    """Yields every text of these columns separately; values that are not text are left out."""
    _check_columns(source, columns)
    for entry in source.rows(columns):
        if not isinstance(entry, BrokenRow):
            yield from (str(value) for value in entry[1] if not text_problem(value))


def _broken_text(source: Source, row: int, columns: Sequence[str], values: Sequence[object]) -> BrokenRow | None:
    """Returns the row with the problem of its first unusable text; None if all texts can be used."""
    if all(isinstance(value, str) and value and not value.isspace() for value in values):
        return None
    for column, value in zip(columns, values, strict=True):
        if problem := text_problem(value):
            return BrokenRow(source.name, source.unit, row, column, shortened(value), problem)
    return None


def _broken_tags(
    source: Source, row: int, columns: Sequence[str], texts: Sequence[object], tags: Sequence[object]
) -> BrokenRow | None:
    for column, text, value in zip(columns, texts, tags, strict=False):  # there may be no columns with tags
        if problem := tags_problem(str(text), value):
            return BrokenRow(source.name, source.unit, row, column, shortened(value), problem)
    return None


def text_problem(value: object) -> str:
    """Says why a value cannot be used as a text; "" if it can."""
    if isinstance(value, str):
        return "" if value.strip() else EMPTY_TEXT
    if value is None or value != value:  # NaN is a missing value in a table
        return EMPTY_TEXT
    return "" if isinstance(value, int | float) else "a list or table; expected text"


def _check_columns(source: Source, columns: Sequence[str]) -> None:
    missing = [str(no_column(source, column)) for column in columns if column not in source.columns]
    if missing:
        raise UserError("\n".join(missing))
