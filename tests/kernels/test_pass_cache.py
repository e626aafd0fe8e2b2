"""A value is computed once in a pass, anew in the next one, and every time outside a pass."""

import numpy as np
import pytest

from polytask.kernels.pass_cache import once_per_pass, start_pass
from polytask.stream import Layout
from polytask.text.packing import Packer, Part


@pytest.fixture
def layout() -> Layout:
    return Packer(("a",), 1, 2, 16).pack([Part("a", [(np.arange(5, 8),)])]).layout


def test_a_value_is_computed_once_for_each_key_of_a_pass(layout: Layout) -> None:
    values = iter(range(10))
    for first in (0, 2):  # two passes
        inside = start_pass(layout)
        found = [once_per_pass(inside, key, lambda: next(values)) for key in ("x", "y", "x", "y")]
        assert found == [first, first + 1, first, first + 1]


def test_none_is_a_value_too(layout: Layout) -> None:
    inside, calls = start_pass(layout), []
    for _ in range(2):
        assert once_per_pass(inside, "x", lambda: calls.append(1)) is None
    assert calls == [1]


def test_outside_a_pass_nothing_is_kept(layout: Layout) -> None:
    inside = start_pass(layout)
    assert inside.lengths == layout.lengths
    once_per_pass(inside, "x", lambda: 1)
    values = iter((2, 3))
    assert [once_per_pass(layout, "x", lambda: next(values)) for _ in range(2)] == [2, 3]
    assert "pass_cache" not in vars(layout)
