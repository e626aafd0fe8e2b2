from typing import Any

import pytest

from polytask.samplers.base import SamplerContext
from polytask.samplers.square_root import SquareRoot

SIZES = {"a": 10_000, "b": 400, "c": 100}


def test_frequencies_follow_the_square_roots(fit: Any) -> None:
    context = SamplerContext(SIZES, 4, 0, 100, 1)
    assert fit(SquareRoot(context), [100, 20, 10]) > 0.001
    assert fit(SquareRoot(context), [10_000, 400, 100]) < 1e-9


def test_a_hundred_times_the_size_is_ten_times_the_chance() -> None:
    assert SquareRoot(SamplerContext(SIZES, 4, 0, 100, 1)).probabilities(0) == pytest.approx([10 / 13, 2 / 13, 1 / 13])
