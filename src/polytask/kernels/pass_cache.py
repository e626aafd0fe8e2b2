"""Values that are computed once in a pass of the encoder and used by several of its layers.

The cache travels with a copy of the layout, which every layer gets and which ends with the pass: the next pass starts
with an empty cache, and no tensor outlives its autograd graph.
"""

import copy
from collections.abc import Callable
from typing import TypeVar

from polytask.stream import Layout

T = TypeVar("T")


def start_pass(layout: Layout) -> Layout:
    """The layout for the layers of one pass, with an empty cache."""
    layout = copy.copy(layout)
    vars(layout)["pass_cache"] = {}
    return layout


def once_per_pass(layout: Layout, key: object, compute: Callable[[], T]) -> T:
    """The value of `compute()`, computed when it is first needed in the pass; outside a pass, every time."""
    cache = vars(layout).get("pass_cache")
    if cache is None:
        return compute()
    if key not in cache:
        cache[key] = compute()
    value: T = cache[key]
    return value
