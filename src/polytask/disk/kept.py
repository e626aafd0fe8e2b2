"""What a process has read from files and keeps in memory between its runs, such as an encoder's weights.

Nothing is kept outside `keeping_values`. A study trains many runs on the same encoder and data, one after another in
one process; a notebook that trains once should not hold a second copy of the weights.
"""

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

Value = TypeVar("Value")
MOST_VALUES = 4
"""Of one kind; the one that was used least recently is dropped."""
_values: list[dict[str, dict[Hashable, Any]]] = []
"""By kind and key; an entry for each `keeping_values` that is open. Threads share them."""


@contextmanager
def keeping_values() -> Iterator[None]:
    """Keeps values inside the context."""
    _values.append({})
    try:
        yield
    finally:
        _values.pop()


def kept(kind: str, key: Hashable, make: Callable[[], Value]) -> Value:
    """Returns the value that was kept under this key, or makes it. Nobody may change it, and it may not be None.

    The key must contain everything that the value depends on: the hashes of files, not only their names.
    """
    if not _values:
        return make()
    values = _values[-1].setdefault(kind, {})
    value: Value | None = values.pop(key, None)
    if value is None:
        value = make()
    values[key] = value  # last, that is, most recently used
    while len(values) > MOST_VALUES:
        values.pop(next(iter(values)))
    return value
