"""Guesses the task of a file whose words have labels: CoNLL columns, lists of words and tags, or texts with spans."""

from collections.abc import Sequence
from itertools import islice
from typing import Any

from polytask.kinds.names import LabelProblem
from polytask.kinds.schemes import guess_scheme, is_span_list, span_classes, written_spans, written_tags
from polytask.tasks.columns import ROWS
from polytask.tasks.sources.conll import ConllSource
from polytask.tasks.sources.source import BrokenRow, Source
from polytask.types import TagScheme

NAMED = 8  # classes listed in a reason
TAG_COLUMNS = ("NER", "UPOS", "XPOS", "POS")


def guess_words(source: Source, label: str | None, text: Sequence[str] | None) -> tuple[str, str, list[str]] | None:
    """Returns the column with the texts or words, the one with their labels, and the reasons; None if words have none.

    `label` and `text` are the columns that the user gave.
    """
    columns = source.columns
    entries = islice(source.rows(columns, needed=()), ROWS)
    rows = [dict(zip(columns, entry[1], strict=True)) for entry in entries if not isinstance(entry, BrokenRow)]
    found = _columns(source, rows)
    labels = [label] if label is not None else [name for name in found if found[name] != "words"]
    texts = list(text) if text else _texts(source, rows)
    if not labels or not texts or labels[0] not in found:
        return None
    chosen = max(labels, key=lambda name: (found[name] != "plain", name in TAG_COLUMNS, labels.index(name)))
    if found[chosen] != "spans" and not _have_tags(rows, texts[0], chosen):
        return None
    names = span_classes(_tags(rows, chosen), "plain" if found[chosen] == "plain" else "bio")
    what = "spans" if found[chosen] == "spans" else f"{found[chosen]} tags"
    few = ", ".join(sorted(names)[:NAMED]) + (" ..." if len(names) > NAMED else "")
    reasons = [f"text: column {texts[0]!r}", f"label: column {chosen!r}; {what} of words ({few}): tokens"]
    return texts[0], chosen, reasons


def _columns(source: Source, rows: Sequence[dict[str, Any]]) -> dict[str, TagScheme | str]:
    """Returns the columns that can be labels of words: `spans`, or the scheme of their tags."""
    found: dict[str, TagScheme | str] = {}
    names = source.columns[1:] if isinstance(source, ConllSource) else source.columns
    for name in names:
        values = [row[name] for row in rows if row[name] is not None]
        if any(is_span_list(value) and value and "start" in written_spans(value)[0] for value in values):
            found[name] = "spans"
        elif values and all(isinstance(value, list) for value in values) and any(values):
            tags = _tags(rows, name)
            scheme = guess_scheme(tags)
            if scheme != "plain" or 2 <= len(set(tags)) <= max(2, len(tags) // 5):
                found[name] = scheme
    return found


def _texts(source: Source, rows: Sequence[dict[str, Any]]) -> list[str]:
    """Returns the columns that can be the texts: lists of many different words, or texts."""
    if isinstance(source, ConllSource):
        return ["FORM" if "FORM" in source.columns else "0"]
    lists = [name for name in source.columns if rows and all(isinstance(row[name], list) for row in rows)]
    words = [name for name in lists if all(isinstance(word, str) for row in rows for word in row[name])]
    if words and not any(is_span_list(row[name]) and row[name] for row in rows for name in lists):
        return [max(words, key=lambda name: len({word for row in rows for word in row[name]}))]
    return [name for name in source.columns if rows and all(isinstance(row[name], str) for row in rows)][:1]


def _have_tags(rows: Sequence[dict[str, Any]], text: str, label: str) -> bool:
    """Whether nearly all rows have lists of words and as many tags; lists of classes are labels of whole texts."""
    lists = [row for row in rows if isinstance(row.get(text), list) and isinstance(row[label], list)]
    same = sum(len(row[text]) == len(row[label]) for row in lists)
    return text != label and same > 0.9 * len(rows)


def _tags(rows: Sequence[dict[str, Any]], name: str) -> list[str]:
    tags: list[str] = []
    for row in rows:
        if is_span_list(row[name]):
            tags += [f"B-{span.get('label')}" for span in written_spans(row[name])]
            continue
        try:
            tags += written_tags(row[name])
        except LabelProblem:
            continue
    return tags
