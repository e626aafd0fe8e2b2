"""Checks the texts and labels of a source's rows. Knows columns and labels; knows no format and no tokenizer."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

from polytask.kinds.base import LabelReader
from polytask.kinds.names import LabelProblem, is_empty
from polytask.kinds.options import FEWEST_OPTIONS, read_options
from polytask.kinds.schemes import is_span_list
from polytask.kinds.table import KINDS
from polytask.settings import TaskSpec
from polytask.tasks.sources.source import BrokenRow, Source, no_column, shortened
from polytask.text.tagging import tags_problem
from polytask.text.words import BETWEEN_SPACES, SEPARATE, WordText, join_words, split_words
from polytask.types import NO_LABEL, UserError

EMPTY_TEXT = "the text is empty"


class LabelledWords(NamedTuple):
    """The words of a text, and the number of each word's label (NO_LABEL without one)."""

    text: WordText
    labels: list[int]


class LabelledRow(NamedTuple):
    """A row that can be used."""

    row: int
    """Its number in the source."""
    texts: tuple[str, ...]
    """Its texts, followed by its options if it has any."""
    label: int | float
    tags: tuple[str, ...] = ()
    """For each text, the tags of its words, if the task has columns with tags."""
    words: LabelledWords | None = None
    """The words of the text with their labels, if words have labels."""


class BlankRow(NamedTuple):
    """A row whose label is empty, in a task that skips such rows."""

    row: int
    """Its number in the source."""


def labelled_rows(spec: TaskSpec, source: Source, reader: LabelReader) -> Iterator[LabelledRow | BlankRow | BrokenRow]:
    """Yields the rows to train on or to score; a row that cannot be used is a BrokenRow."""
    if KINDS[spec.kind].per_word:
        yield from _word_rows(spec, source, reader)
        return
    columns = (*spec.text, *spec.tags, *spec.label_columns, *spec.option_columns)
    skips_blanks = spec.skips_blanks and bool(spec.label_columns)
    needed = (*spec.text, *spec.tags, *(() if skips_blanks else spec.label_columns))
    _check_columns(source, columns)
    for entry in source.rows(columns, needed=needed):
        if isinstance(entry, BrokenRow):
            yield entry
            continue
        row, values = entry
        texts, tags, written, offered = _parts(spec, values)
        if skips_blanks and all(map(is_empty, [written] if isinstance(spec.label, str) else written)):
            yield BlankRow(row)
            continue
        broken = _broken_text(source, row, spec.text, texts) or _broken_tags(source, row, spec.tags, texts, tags)
        if broken is not None:
            yield broken
            continue
        options: tuple[str, ...] = ()
        try:
            options = read_options(offered) if spec.has_options else ()
        except LabelProblem as problem:
            where, value = ", ".join(spec.option_columns), shortened(offered[0] if len(offered) == 1 else offered)
            yield BrokenRow(source.name, source.unit, row, where, value, str(problem))
            continue
        try:
            written_texts = (*map(str, texts), *options)
            given = [written, *options] if options else written
            label = reader.read_texts(written_texts) if spec.label is None else reader.read(given)
            yield LabelledRow(row, written_texts, label, tuple(map(str, tags)))
        except LabelProblem as problem:
            yield BrokenRow(source.name, source.unit, row, _joined(spec), shortened(written), str(problem))
        except UserError as error:
            raise UserError(f"{source.name}, {source.unit} {row}, column {_joined(spec)!r}: {error}") from error


def _parts(spec: TaskSpec, values: list[Any]) -> tuple[list[Any], list[Any], Any, list[Any]]:
    """Divides the values of a row into texts, tags, the label (a list for several columns) and options."""
    ends = list(accumulate((len(spec.text), len(spec.tags), len(spec.label_columns)), initial=0))
    texts, tags, labels = (values[first:last] for first, last in pairwise(ends))
    return texts, tags, labels[0] if isinstance(spec.label, str) else labels, values[ends[-1] :]


def row_texts(spec: TaskSpec, values: Sequence[object]) -> tuple[str, ...]:
    """Returns the texts of a usable row, followed by its options; `values` are those of `spec.input_columns`."""
    texts = tuple(map(str, values[: len(spec.text)]))
    return (*texts, *read_options(values[len(spec.text) :])) if spec.has_options else texts


def num_texts(spec: TaskSpec, source: Source) -> int:
    """Returns the largest number of texts and options that a row can have; lists of options are counted."""
    if not isinstance(spec.options, str):
        return len(spec.input_columns)
    most = FEWEST_OPTIONS
    _check_columns(source, (spec.options,))
    for entry in source.rows((spec.options,), needed=()):
        if not isinstance(entry, BrokenRow):
            with suppress(LabelProblem):
                most = max(most, len(read_options(entry[1])))
    return len(spec.text) + most


def _word_rows(spec: TaskSpec, source: Source, reader: LabelReader) -> Iterator[LabelledRow | BrokenRow]:
    """Yields the rows of a kind whose words have labels."""
    columns = (*spec.text, *spec.label_columns)
    _check_columns(source, columns)
    for entry in source.rows(columns):
        if isinstance(entry, BrokenRow):
            yield entry
            continue
        row, (text, *label) = entry
        if problem := words_problem(text):
            yield BrokenRow(source.name, source.unit, row, spec.text[0], shortened(text), problem)
            continue
        words = row_words(text, label[0] if label else None)
        try:
            numbers = reader.read_words(words.words, label[0]) if label else [NO_LABEL] * len(words.words)
            yield LabelledRow(row, (words.text,), 0, words=LabelledWords(words, numbers))
        except LabelProblem as error:
            yield BrokenRow(source.name, source.unit, row, columns[1], shortened(label[0]), str(error))
        except UserError as error:
            raise UserError(f"{source.name}, {source.unit} {row}, column {columns[1]!r}: {error}") from error


def row_words(text: object, label: object = None) -> WordText:
    """Returns the words of a row: those of a list, or of a running text.

    A running text is split at spaces if its label has one tag for each word, and at marks too if it has spans.
    """
    if isinstance(text, list | tuple):
        return join_words([str(word) for word in text])
    return split_words(str(text), SEPARATE if label is None or is_span_list(label) else BETWEEN_SPACES)


def words_problem(value: object) -> str:
    """Says why a value cannot be used as a text with words; "" if it can."""
    if not isinstance(value, list | tuple):
        return text_problem(value)
    if not value:
        return EMPTY_TEXT
    wrong = next((word for word in value if not isinstance(word, str | int | float) or text_problem(word)), None)
    return "" if wrong is None and None not in value else "a word is empty or not a text"


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
    if isinstance(value, bytes):
        return "bytes; expected text: write the column as strings"
    return "" if isinstance(value, int | float) else "a list or table; expected text"


def _check_columns(source: Source, columns: Sequence[str]) -> None:
    missing = [str(no_column(source, column)) for column in columns if column not in source.columns]
    if missing:
        raise UserError("\n".join(missing))
