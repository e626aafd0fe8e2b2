"""Guesses the options of a file of kind choice: a column of lists, or one column for each option. Knows no model."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from polytask.kinds.names import LabelProblem, is_empty, is_list
from polytask.kinds.options import option_index, read_options
from polytask.tasks.columns import Column, first_rows, likeness, rank
from polytask.tasks.sources.source import BrokenRow, Source

OPTION_NAMES = "option choice reply answer ending candidate response alternative solution sol continuation completion"
RIGHT_NAMES = "label answer correct best right gold target solution key index idx"
NUMBERED = re.compile(r"(.*?)[ _-]?(\d+|[a-zA-Z])")
NEARLY_ALL = 0.95
"""The share of rows whose values must fit."""


class Options(NamedTuple):
    """The columns of options, and the column that says which option is right."""

    options: str | tuple[str, ...]
    label: str
    reason: str
    label_reason: str

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.options,) if isinstance(self.options, str) else self.options


def guess_options(
    source: Source, columns: Sequence[Column], task: str, label: str | None, not_free: Collection[str]
) -> Options | None:
    """Returns the columns of options and of their labels; None if the file has no options.

    `label` is the column that the user gave; columns in `not_free` are something else.
    """
    free = [column for column in columns if column.name not in not_free]
    candidates = [*_numbered([column.name for column in free]), *_lists(free)]
    if not candidates:
        return None
    names = source.columns
    entries = islice(source.rows(names, needed=()), first_rows(names))
    rows = [dict(zip(names, entry[1], strict=True)) for entry in entries if not isinstance(entry, BrokenRow)]
    for options in candidates:
        offered = [given for row in rows if (given := _offered(row, options))]
        others = [column for column in free if column.name not in options]
        if label is not None:
            others = [column for column in columns if column.name == label]
        if len(offered) < max(1.0, NEARLY_ALL * len(rows)):
            continue
        chosen = _label(others, rows, options, task, is_given=label is not None)
        if any(column.is_text for column in columns if column.name not in (*options, chosen)) and chosen is not None:
            counts = sorted({len(given) for given in offered})
            several = " to ".join(map(str, dict.fromkeys((counts[0], counts[-1]))))
            form = f"column {options[0]!r}, lists" if len(options) == 1 else f"columns {', '.join(map(repr, options))}"
            how = "as given" if label is not None else "which names one of the options"
            reason, label_reason = f"options: {form} of {several} texts", f"label: column {chosen!r}, {how}"
            return Options(options[0] if len(options) == 1 else options, chosen, reason, label_reason)
    return None


def _numbered(names: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yields the names that differ in a number or a letter at their end, from the first one on: reply_0, reply_1."""
    by_stem: dict[str, dict[str, str]] = {}
    for name in names:
        if matched := NUMBERED.fullmatch(name.strip()):
            by_stem.setdefault(matched[1].lower(), {})[matched[2].lower()] = name
    for stem, by_end in by_stem.items():
        for ends in (map(str, range(len(names))), map(str, range(1, len(names) + 1)), "abcdefghijklmnopqrstuvwxyz"):
            found = []
            for end in ends:
                if end not in by_end:
                    break
                found.append(by_end[end])
            # Two columns such as text1 and text2 are rather a pair, and so are two columns without a name.
            if len(found) > (1 if rank(stem, OPTION_NAMES) is not None else 2 if not stem else len(names)):
                yield tuple(found)
                break


def _lists(columns: Sequence[Column]) -> Iterator[tuple[str, ...]]:
    """Yields each column of lists, unless a few short names repeat in them: those are classes."""
    for column in columns:
        if column.values and all(map(is_list, column.values)) and column.separator is None:
            yield (column.name,)


def _offered(row: Mapping[str, Any], columns: Sequence[str]) -> tuple[str, ...]:
    """Returns the options of a row; none if they cannot be read."""
    try:
        return read_options([row[name] for name in columns])
    except LabelProblem:
        return ()


def _label(
    columns: Sequence[Column], rows: Sequence[Mapping[str, Any]], options: Sequence[str], task: str, is_given: bool
) -> str | None:
    """Returns the column that has the text, the column or the index of an option in nearly every row.

    A column of indices must have the name of the task or of a label, as there are many other small numbers.
    """
    ranked = []
    for column in columns:
        fits, is_text, labelled = _fits(column.name, rows, options)
        named = likeness(column.name, task) is not None or rank(column.name, RIGHT_NAMES) is not None
        enough = labelled > 0 and fits >= NEARLY_ALL * labelled and column.different > 1
        if enough and (is_given or named or is_text) and (is_given or not column.is_date):
            ranked.append((likeness(column.name, task) is None, not named, not is_text, column.name))
    return min(ranked, key=lambda entry: entry[:3])[-1] if ranked else None


def _fits(name: str, rows: Sequence[Mapping[str, Any]], options: Sequence[str]) -> tuple[int, bool, int]:
    """Returns how many labels name an option, whether by their text or column, and how many labels there are."""
    fits = texts = labelled = 0
    names = [column for column in options if not column.isdecimal()] if len(options) > 1 else []
    for row in rows:
        if is_empty(row[name]):
            continue
        labelled += 1
        offered = _offered(row, options)
        try:
            option_index(row[name], offered, names)
            fits += 1
            texts += str(row[name]).strip() in (*map(str.strip, offered), *names)
        except LabelProblem:
            continue
    return fits, texts > fits / 2, labelled
