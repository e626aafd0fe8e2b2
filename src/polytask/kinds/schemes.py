"""Schemes of tags: how the tags of words mark spans, such as names of people and places. Imports no PyTorch.

`bio`: B-PER begins a span of class PER, I-PER is inside it, O is outside of all spans. `bioes` has E- for the last word
and S- for the only word as well. `plain`: a tag says something about its word only, as a part of speech does; each word
is then a span by itself.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from polytask.kinds.names import LabelProblem, is_empty
from polytask.types import TagScheme

OUTSIDE = "O"
WORDS = 2
"""The columns of counts of spans that are about words, the last ones: see `tokens.tallies`."""
PREFIXES: dict[TagScheme, str] = {"bio": "BI", "bioes": "BIES", "plain": ""}
_PATTERNS = {scheme: re.compile(rf"O|[{letters}]-.+", re.DOTALL) for scheme, letters in PREFIXES.items() if letters}


class TagSpan(NamedTuple):
    """Words that belong together: the first one, the one after the last, and their class."""

    first: int
    last: int
    label: str


def guess_scheme(tags: Iterable[str]) -> TagScheme:
    """Returns the first scheme that all tags fit."""
    different = set(tags)
    for scheme, pattern in _PATTERNS.items():
        if different - {OUTSIDE} and all(pattern.fullmatch(tag) for tag in different):
            return scheme
    return "plain"


def fits(tag: str, scheme: TagScheme) -> bool:
    """Whether a tag can be one of the scheme."""
    return scheme == "plain" or _PATTERNS[scheme].fullmatch(tag) is not None


def span_class(tag: str, scheme: TagScheme) -> str:
    """Returns the class of the spans that a tag marks; "" for O."""
    if scheme == "plain":
        return tag
    return "" if tag == OUTSIDE else tag[2:]


def span_classes(tags: Iterable[str], scheme: TagScheme) -> tuple[str, ...]:
    """Returns the classes of spans that the tags mark, in order of appearance."""
    return tuple(dict.fromkeys(name for tag in tags if (name := span_class(tag, scheme))))


def all_tags(classes: Iterable[str], scheme: TagScheme) -> tuple[str, ...]:
    """Returns every tag that spans of these classes can need, whether the training data has it or not."""
    if scheme == "plain":
        return tuple(classes)
    return (OUTSIDE, *(f"{letter}-{name}" for name in classes for letter in PREFIXES[scheme]))


def find_spans(tags: Sequence[str], scheme: TagScheme) -> Iterator[TagSpan]:
    """Yields the spans of a text's tags; sequences that break the scheme are read as conlleval and seqeval do.

    An inside or last tag without a span of its class before it begins a new span.
    """
    if scheme == "plain":
        yield from (TagSpan(i, i + 1, tag) for i, tag in enumerate(tags) if tag)
        return
    first, before, label = 0, OUTSIDE, ""
    for i, tag in enumerate((*tags, OUTSIDE)):
        letter, name = (tag[0], tag[2:]) if tag != OUTSIDE else (OUTSIDE, "")
        begins = letter in "BS" or (letter != OUTSIDE and (before in "OES" or name != label))
        if before != OUTSIDE and (begins or letter == OUTSIDE or before in "ES"):
            yield TagSpan(first, i, label)
            before = OUTSIDE
        if begins:
            first = i
        before, label = letter, name


def tag_spans(spans: Iterable[TagSpan], words: int, scheme: TagScheme) -> list[str]:
    """Returns the tags of a text's words that mark these spans, which must not overlap.

    Words outside of all spans have the tag O, or "" in the scheme `plain`.
    """
    tags = ["" if scheme == "plain" else OUTSIDE] * words
    for first, last, label in spans:
        letters = ["B"] + ["I"] * (last - first - 1)
        if scheme == "bioes":
            letters[-1] = "S" if last - first == 1 else "E"
        tags[first:last] = [label if scheme == "plain" else f"{letter}-{label}" for letter in letters]
    return tags


# --- labels as files write them ---------------------------------------------------------------------------------------
def is_span_list(value: object) -> bool:
    """Whether a label is a list of spans rather than of tags. A text without spans has an empty list."""
    return isinstance(value, list | tuple) and all(isinstance(item, Mapping) or _is_triple(item) for item in value)


def _is_triple(item: object) -> bool:
    return isinstance(item, list | tuple) and [type(part) for part in item] == [int, int, str]


def written_spans(value: object) -> list[Mapping[str, Any]]:
    """Returns the spans of a list, each with start, end and label; in files they may be written [start, end, label]."""
    assert isinstance(value, list | tuple)
    keys = ("start", "end", "label")
    return [item if isinstance(item, Mapping) else dict(zip(keys, item, strict=True)) for item in value]


def written_tags(value: object) -> list[str]:
    """Returns the tags of a list, or of a text in which spaces separate them."""
    if isinstance(value, str):
        tags: list[Any] = value.split()
    elif isinstance(value, list | tuple):
        tags = list(value)
    else:
        tags = []
    if not tags:
        raise LabelProblem("no tags; expected a list with one tag for each word, or a list of spans")
    if any(isinstance(tag, list | tuple | Mapping) for tag in tags):
        raise LabelProblem("a tag is a list; expected tags, or a list of spans such as {start: 0, end: 4, label: PER}")
    if any(is_empty(tag) or not isinstance(tag, str | int) for tag in tags):
        raise LabelProblem("a tag is empty or not a name; expected one tag for each word")
    return [str(tag).strip() for tag in tags]
