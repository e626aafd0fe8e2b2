"""Guesses the task that a file holds: its text and label columns, its kind, and the reasons. Knows no model."""

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from polytask.kinds.names import NO, NUMBER, PLAIN_NUMBER, YES, class_name, sorted_classes
from polytask.settings import MOST_TEXTS, TaskSpec
from polytask.tasks.columns import LABEL_NAMES, TEXT_NAMES, Column, columns_of, first_pair, likeness, rank
from polytask.tasks.guess_flags import check_flags, flags_hint
from polytask.tasks.guess_options import Options, guess_options
from polytask.tasks.guess_words import guess_words
from polytask.tasks.reading import detected_fields, open_for, open_source
from polytask.tasks.siblings import find_dev
from polytask.tasks.sources.encoding import WINDOWS
from polytask.tasks.sources.sheets import SheetSource
from polytask.tasks.sources.source import BrokenRow, Source, no_column
from polytask.types import LabelKind, UserError

NAMED = 8  # columns listed in a reason
LEFT_OUT = ", which are left out"  # said of rows with an empty label
MOST_OF_A_SCALE, PERCENT = 10, 100  # scales that people use: 0 to 1, 1 to 5, -1 to 1, 0 to 10, 0 to 100


@dataclass(frozen=True)
class Guess:
    """The task that was guessed from a file."""

    spec: TaskSpec
    """The guessed fields. Where no column or file fits, `label` is None, `text` is empty, `dev` is empty."""
    reasons: list[str]
    """The reasons in plain words; the last one is about dev."""
    columns: tuple[str, ...]
    """The columns of the training file."""
    has_blanks: bool = False
    """Whether some rows have no label."""

    @property
    def has_dev(self) -> bool:
        return bool(self.spec.dev)


def guess_task(
    name: str,
    train: str,
    *,
    dev: str | None = None,
    label: str | Sequence[str] | None = None,
    text: Sequence[str] | None = None,
    others: Collection[str] = (),
    taken: Collection[str] = (),
) -> Guess:
    """Guesses the task that the file `train` holds.

    `dev`, `label` and `text` are not guessed if they are given; several columns as `label` are the classes of kind
    multilabel. A guessed label is none of the columns in `taken`, and none that is named like one of the `others`,
    which are further tasks from the same file.
    """
    source = open_source(train)
    names = _given_names(source, [label] if isinstance(label, str) else label or [])
    if len(names) > 1:
        return _guess_flags(name, source, train, dev, names, text)
    label = names[0] if names else None
    of_words = guess_words(source, label, text)
    if of_words is not None:
        text_column, label_column, reasons = of_words
        dev, dev_reason = find_dev(train, dev, (text_column, label_column))
        spec = TaskSpec(name, "tokens", (text_column,), label_column, train, dev or "")
        return Guess(spec, [*reasons, dev_reason], source.columns)
    columns = columns_of(source)
    given_texts = _given_texts(source, columns, text) if text else []
    not_free = {*taken, *(column.name for column in given_texts), *_named_like(columns, others)}
    options = guess_options(source, columns, name, label, not_free)
    chosen: Column | None
    if options is not None:
        chosen, label_reason = _given(source, columns, options.label), options.label_reason
    else:
        free = [column for column in columns if column.name not in not_free]
        chosen, label_reason = _given_label(source, columns, label) if label else _guess_label(name, free)
    option_columns = options.columns if options is not None else ()
    rest = [column for column in columns if column is not chosen and column.name not in option_columns]
    given = (given_texts, f"text: {_quoted(text or ())}, as given") if given_texts else None
    texts, text_reason = given or _only_pair(chosen, rest) or _guess_texts(rest)
    if chosen in texts:
        raise UserError(f"{train}: column {texts[0].name!r} is given both as text and as label of task {name}")
    if options is not None and not given and len(texts) > 1:
        text_reason = f"text: column {texts[0].name!r}; if {texts[1].name!r} belongs to it, join the two columns"
        texts = texts[:1]
    kind, kind_reason = _guess_kind(chosen, options) if chosen is not None else _kind_without_label(rest, texts)
    used = tuple(column.name for column in texts)
    dev, dev_reason = find_dev(train, dev, (*used, *option_columns, *([chosen.name] if chosen is not None else [])))
    spec = TaskSpec(name, kind, used, chosen.name if chosen is not None else None, train, dev or "")
    spec = replace(spec, options=options.options if options is not None else None, **_shared_fields(source, dev))
    more = [options.reason] if options is not None else []
    label_reason += kind_reason
    if label is None and kind == "yes_no" and not others:
        label_reason += flags_hint(name, [column for column in columns if column.name not in not_free])
    if chosen is not None:
        spec, reason = _with_label_fields(spec, chosen)
        label_reason += reason
    reasons = [text_reason, *more, label_reason, *_format_reasons(source), dev_reason]
    return Guess(spec, reasons, source.columns, has_blanks=chosen is not None and chosen.blanks > 0)


def _guess_flags(
    name: str, source: Source, train: str, dev: str | None, labels: Sequence[str], text: Sequence[str] | None
) -> Guess:
    """Guesses the rest of a task whose classes are these columns of 0 and 1."""
    columns = columns_of(source)
    check_flags(train, [_given(source, columns, label) for label in labels])
    rest = [column for column in columns if column.name not in labels]
    given = (_given_texts(source, rest, text), f"text: {_quoted(text)}, as given") if text else None
    texts, text_reason = given or _guess_texts(rest)
    used = tuple(column.name for column in texts)
    dev, dev_reason = find_dev(train, dev, (*used, *labels))
    fields = _shared_fields(source, dev)
    spec = TaskSpec(name, "multilabel", used, tuple(labels), train, dev or "", **fields)
    label_reason = f"label: columns {_quoted(labels)}, as given; each is a class: multilabel"
    return Guess(spec, [text_reason, label_reason, *_format_reasons(source), dev_reason], source.columns)


def _with_label_fields(spec: TaskSpec, label: Column) -> tuple[TaskSpec, str]:
    """Returns the task with the fields that say how its labels are written, and the reasons."""
    if spec.kind == "multilabel":
        return replace(spec, separator=label.separator or None), ""
    reason = ""
    if label.blanks:  # of multilabel, a blank is a row without a class
        spec = replace(spec, blank_labels="skip")
        reason = f"; empty in {label.blanks:,} of {label.blanks + len(label.values):,} rows{LEFT_OUT}"
    if spec.kind != "score":
        return spec, reason
    spec = replace(spec, range=_scale(spec))
    if spec.range is None:
        return spec, f"{reason}, no range, so any number can be predicted"
    return spec, f"{reason}, range {spec.range[0]:g} to {spec.range[1]:g}"


# --- columns ----------------------------------------------------------------------------------------------------------
def _named_like(columns: Sequence[Column], tasks: Collection[str]) -> Iterator[str]:
    for task in tasks:
        yield from (column.name for column in columns if likeness(column.name, task) == 0)


def _given(source: Source, columns: Sequence[Column], name: str) -> Column:
    for column in columns:
        if column.name == name:
            return column
    raise no_column(source, name)


def _given_names(source: Source, names: Sequence[str]) -> list[str]:
    """Returns the names of given columns; that of a single column may contain a comma."""
    joined = ",".join(names)
    return [joined] if names and joined in source.columns else [name.strip() for name in names]


def _given_texts(source: Source, columns: Sequence[Column], given: Sequence[str]) -> list[Column]:
    names = _given_names(source, given)
    texts = [_given(source, columns, name) for name in names]
    if len(texts) > MOST_TEXTS or len(set(names)) < len(names):
        raise UserError(
            f"{source.name}: text must be one column, or up to {MOST_TEXTS} different columns, found {_quoted(names)}"
        )
    return texts


def _given_label(source: Source, columns: Sequence[Column], name: str) -> tuple[Column, str]:
    column = _given(source, columns, name)
    if column.different < 2:
        values = f"{column.values[0]!r} in every row" if column.values else "no value in the first rows"
        raise UserError(
            f"{source.name}, column {name!r}: a label must have two or more different values, found {values}"
        )
    return column, f"label: column {name!r}, as given"


def _guess_label(task: str, columns: Sequence[Column]) -> tuple[Column | None, str]:
    """Returns a column named like the task, or like a label, or with few different values; or None."""
    like = [(order, column) for column in columns if (order := likeness(column.name, task)) is not None]
    named = [(order, column) for column in columns if (order := rank(column.name, LABEL_NAMES)) is not None]
    possible = [column for column in columns if column.could_be_label]
    for reason, candidates in ((f"named like the task {task!r}", like), ("by its name", named)):
        usable = [(order, column) for order, column in candidates if column.could_be_named_label]
        if usable:
            best = min(usable, key=lambda pair: pair[0])[1]
            others = [column.name for column in possible if column is not best]
            could = f" ({_quoted(others)} could be the label of another task)" if others else ""
            return best, f"label: column {best.name!r}, {reason}{could}"
    if possible:
        best = min(reversed(possible), key=lambda column: column.different)
        return best, f"label: column {best.name!r}, because its values are few and short"
    never = [column.name for column in columns if column.is_constant or column.is_date]
    but = f" (columns with a single value or with dates are never chosen: {_quoted(never)})" if never else ""
    written = [column.name for column in columns if column.has_written_numbers]
    if written:
        but += f"; numbers must be {PLAIN_NUMBER}, and are not in {_quoted(written)}"
    return None, f"label: not found; no column has numbers or a few different names{but}"


def _guess_texts(columns: Sequence[Column]) -> tuple[list[Column], str]:
    words = [column for column in columns if column.is_text and column.separator is None]
    # A column with few different values is a category rather than a text.
    texts = [column for column in words if column.different * 10 > len(column.values)] or words
    if not texts:
        return [], "text: not found; no column has words that differ from row to row"
    pair = first_pair([column.name for column in texts])
    if pair is not None:
        both = [texts[i] for i in pair]
        rest = [column.name for column in texts if column not in both]
        more = f"; if more texts belong to them ({_quoted(rest)}), name all with --text" if rest else ""
        return both, f"text: columns {both[0].name!r} and {both[1].name!r}, a pair by their names{more}"
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


def _only_pair(label: Column | None, columns: Sequence[Column]) -> tuple[list[Column], str] | None:
    """Returns the two columns with texts of a file that has no label and nothing else but ids and dates."""
    texts = [column for column in columns if not (column.is_id or column.is_date)]
    if label is not None or len(texts) != 2 or not all(column.is_text for column in texts):
        return None
    return texts, f"text: columns {texts[0].name!r} and {texts[1].name!r}, the only ones"


def _quoted(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED:,} more" if len(names) > NAMED else ""
    return ", ".join(map(repr, names[:NAMED])) + more


def _guess_kind(label: Column, options: Options | None) -> tuple[LabelKind, str]:
    if options is not None:
        return "choice", ": choice"
    if label.separator is not None:
        several = list(label.names(label.separator))
        few = ", ".join(several[:8]) + (" ..." if len(several) > 8 else "")
        how = f"separated by {label.separator!r}" if label.separator else "in lists"
        return "multilabel", f"; {len(several)} different names {how} in {len(label.values):,} rows ({few}): multilabel"
    names = sorted_classes(tuple({class_name(value) for value in label.values}))
    rows = f"in {len(label.values):,} rows"
    doubt = " (its name is one of its values: is the header missing?)" if class_name(label.name) in names else ""
    if {name.lower() for name in names} <= YES | NO:
        return "yes_no", f"{doubt}; {' and '.join(names)} {rows}: yes_no"
    numbers = label.numbers
    if numbers and (any(not number.is_integer() for number in numbers) or len(names) > 20):
        values = f"numbers from {min(numbers):g} to {max(numbers):g}, {len(names)} different {rows}"
        return "score", f"{doubt}; {values}: score"
    if label.has_written_numbers:
        doubt += f" (for scores, correct the file: numbers must be {PLAIN_NUMBER})"
    what = "integers" if all(NUMBER.fullmatch(name) for name in names) else "names"
    few = ", ".join(names[:8]) + (" ..." if len(names) > 8 else "")
    return "classes", f"{doubt}; {len(names)} different {what} {rows} ({few}): classes"


def _kind_without_label(columns: Sequence[Column], texts: Sequence[Column]) -> tuple[LabelKind, str]:
    """Returns match for a file of two texts and nothing else but ids and dates."""
    others = [column for column in columns if column not in texts and not (column.is_id or column.is_date)]
    if len(texts) != 2 or others:
        return "classes", ""
    return "match", "; only two texts in each row, which belong together: match"


def _scale(spec: TaskSpec) -> tuple[float, float] | None:
    """Returns the integers around all scores of the files, if they look like the ends of a scale such as 1 to 5."""
    low, high = _whole_range(spec)
    is_scale = (low >= -MOST_OF_A_SCALE and high <= MOST_OF_A_SCALE) or (low in (0, 1) and high == PERCENT)
    return (low, high) if is_scale else None


def _whole_range(spec: TaskSpec) -> tuple[float, float]:
    """Returns the integers around all scores of the files, not only those of the first rows."""
    low, high = math.inf, -math.inf
    for path in filter(None, (spec.train, spec.dev)):
        for row in open_for(spec, path).rows(spec.label_columns):
            try:
                score = math.nan if isinstance(row, BrokenRow) else float(row[1][0])
            except (TypeError, ValueError):
                continue
            if math.isfinite(score):
                low, high = min(low, score), max(high, score)
    return float(math.floor(low)), float(math.ceil(high))


# --- encoding, delimiter, sheet ---------------------------------------------------------------------------------------
def _shared_fields(source: Source, dev: str | None) -> dict[str, Any]:
    """Returns encoding and delimiter for the recipe, which has one of each for all files of a task."""
    fields = detected_fields(source)
    if not dev or not fields:
        return fields
    of_dev = detected_fields(open_source(dev))
    return {field: value for field, value in fields.items() if of_dev.get(field) == value}


def _format_reasons(source: Source) -> Iterator[str]:
    fields = detected_fields(source)
    if fields.get("encoding") == WINDOWS:
        yield (
            "encoding: read as Windows-1252, a guess, because the file is not UTF-8; if letters look wrong, save it as "
            "UTF-8 and run init again"
        )
    elif "encoding" in fields:
        yield f"encoding: {fields['encoding']}"
    if "delimiter" in fields:
        yield f"delimiter: {fields['delimiter']}"
    if isinstance(source, SheetSource) and source.sheet is None and len(source.titles) > 1:
        others = [title for title in source.titles if title != source.title]
        yield f"sheet: {source.title!r}, the first one; to read another, use {source.name}#SHEET ({_quoted(others)})"
