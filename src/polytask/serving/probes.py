"""Inputs that a server computes for itself: to warm up, to measure its pace, and to see whether the model works."""

from collections.abc import Sequence
from itertools import accumulate

from polytask.serving.examples import Example
from polytask.serving.failures import Failure
from polytask.serving.items import Item
from polytask.serving.mixed import SHAPES, MixedPredictor

PROBE = "A short text."
PACE_TEXTS = 64
"""How many texts the first estimate of the pace is measured with: they have more tokens than a small batch."""


def pace_items(model: MixedPredictor, most: int) -> list[Item]:
    """Items for a batch of at most so many tokens. Their texts differ, because equal ones are computed once."""
    texts: list[Example] = [(f"{PROBE} Its number is {i}.",) for i in range(PACE_TEXTS)]
    items = [item for own in model.tokenize_for_embedding(None, texts, "end") for item in _only([own])]
    return [item for item, total in zip(items, accumulate(item.tokens for item in items), strict=True) if total <= most]


def probe_items(model: MixedPredictor) -> list[Item]:
    """One item for each pass that a request may need, and for an embedding."""
    items: list[Item] = []
    for shape in SHAPES:
        if tasks := model.tasks_taking(shape):
            example: Example = (PROBE, "Yes.", "No.") if shape == "options" else (PROBE,) * shape
            items += _only(model.tokenize(tasks, [example], "end"))
    return items + _only(model.tokenize_for_embedding(None, [(PROBE,)], "end"))


def _only(found: Sequence[list[Item] | Failure]) -> list[Item]:
    (items,) = found
    assert not isinstance(items, Failure), items
    return items
