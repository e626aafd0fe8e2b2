"""Every step sums to the batch size, each count is its share rounded up or down, and the mean is the exact share."""

import math

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polytask import seeds
from polytask.samplers.base import SamplerContext
from polytask.samplers.mixed import Mixed

SIZES = {"a": 700, "b": 200, "c": 90, "d": 10}


def counts(sampler: Mixed, steps: int) -> npt.NDArray[np.int64]:
    found = []
    for _ in range(steps):
        by_task = {draw.task: draw.count for draw in sampler.next_step()}
        assert list(by_task) == [task for task in sampler.tasks if task in by_task], "in the recipe's order"
        found.append([by_task.get(task, 0) for task in sampler.tasks])
    return np.array(found)


@pytest.mark.parametrize(
    ("alpha", "shares"), [(1.0, [0.7, 0.2, 0.09, 0.01]), (0.0, [0.25, 0.25, 0.25, 0.25]), (0.5, None)]
)
@pytest.mark.parametrize("batch_size", [1, 3, 16, 33])
def test_shares_are_exact_over_many_steps(alpha: float, shares: list[float] | None, batch_size: int) -> None:
    if shares is None:
        roots = [math.sqrt(size) for size in SIZES.values()]
        shares = [root / sum(roots) for root in roots]
    found = counts(Mixed(SamplerContext(SIZES, batch_size, 0, 100, 1), alpha=alpha), 1000)
    exact = batch_size * np.array(shares)
    assert (found.sum(axis=1) == batch_size).all()
    assert (np.abs(found - exact) < 1 + 1e-9).all()
    # A count is one of two neighbours, so its deviation is known exactly: five standard errors, and a fixed seed.
    part = exact - np.floor(exact)
    errors = np.sqrt(part * (1 - part) / 1000)
    assert (np.abs(found.mean(axis=0) - exact) <= 5 * errors + 1e-9).all()


def test_equal_shares_that_divide_are_the_same_in_every_step() -> None:
    assert (counts(Mixed(SamplerContext(SIZES, 8, 0, 100, 1), alpha=0.0), 50) == 2).all()


def test_more_tasks_than_examples() -> None:
    sizes = {str(i): 10 for i in range(7)}
    found = counts(Mixed(SamplerContext(sizes, 3, 0, 100, 1)), 2000)
    assert (found.sum(axis=1) == 3).all()
    assert (found <= 1).all()
    assert (found.sum(axis=0) > 700).all(), "2000 * 3/7 is 857 for each"


@settings(deadline=None)
@given(
    st.lists(st.integers(1, 10**9), min_size=1, max_size=30), st.integers(1, 512), st.floats(0, 1), st.integers(0, 9)
)
def test_always_the_batch_size(sizes: list[int], batch_size: int, alpha: float, seed: int) -> None:
    context = SamplerContext({str(i): size for i, size in enumerate(sizes)}, batch_size, seed, 10, 1)
    sampler = Mixed(context, alpha=alpha)
    for step in range(5):
        draws = sampler.draws(step)
        assert sum(draw.count for draw in draws) == batch_size
        assert all(draw.count > 0 for draw in draws)


class Always:
    def __init__(self, value: float) -> None:
        self.value = value

    def random(self) -> float:
        return self.value


@pytest.mark.parametrize("u", [0.0, 1 - 2**-53])
def test_rounding_at_the_ends_of_u_loses_and_adds_nothing(u: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seeds, "generator", lambda *_: Always(u))
    for count in range(1, 40):
        for largest in (1, 10**18):
            sizes = {str(i): largest if i == 0 else 1 for i in range(count)}
            for order in (sizes, dict(reversed(sizes.items()))):
                draws = Mixed(SamplerContext(order, 8, 0, 10, 1)).draws(0)
                assert sum(draw.count for draw in draws) == 8
                assert all(draw.count > 0 for draw in draws)
