"""alpha 0 gives equal shares, alpha 1 shares in proportion to the sizes."""

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polytask.samplers.base import SamplerContext
from polytask.samplers.power import Power
from polytask.samplers.proportional import Proportional
from polytask.samplers.square_root import SquareRoot

SIZES = {"a": 8000, "b": 1000, "c": 125}
CONTEXT = SamplerContext(SIZES, 4, 0, 100, 1)


@pytest.mark.parametrize(("alpha", "shares"), [(0.0, [1, 1, 1]), (1 / 3, [20, 10, 5]), (1.0, [64, 8, 1])])
def test_frequencies_follow_the_power(fit: Any, alpha: float, shares: list[float]) -> None:
    sampler = Power(CONTEXT, alpha=alpha)
    assert sampler.probabilities(0) == pytest.approx([share / sum(shares) for share in shares])
    assert fit(sampler, shares) > 0.001


def test_its_named_points_draw_the_same() -> None:
    for other, alpha in ((Proportional(CONTEXT), 1.0), (SquareRoot(CONTEXT), 0.5)):
        power = Power(CONTEXT, alpha=alpha)
        assert [power.next_step() for _ in range(200)] == [other.next_step() for _ in range(200)]


@settings(deadline=None)
@given(st.lists(st.integers(1, 10**9), min_size=1, max_size=20), st.floats(0, 1))
def test_larger_tasks_never_have_smaller_probabilities(sizes: list[int], alpha: float) -> None:
    context = SamplerContext({str(i): size for i, size in enumerate(sizes)}, 4, 0, 100, 1)
    chances = Power(context, alpha=alpha).probabilities(0)
    assert chances.sum() == pytest.approx(1)
    pairs = sorted(zip(sizes, chances, strict=True))
    assert all(one <= two * (1 + 1e-12) for (_, one), (_, two) in itertools.pairwise(pairs))
