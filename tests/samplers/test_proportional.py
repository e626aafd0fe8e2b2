from collections import Counter

from scipy import stats

from polytask.samplers.base import SamplerContext
from polytask.samplers.proportional import Proportional

SIZES = {"a": 700, "b": 200, "c": 100}


def tasks(seed: int) -> list[str]:
    sampler = Proportional(SamplerContext(SIZES, 4, seed, 100, 1))
    return [sampler.next_step()[0].task for _ in range(5000)]


def test_frequencies_follow_the_sizes() -> None:
    counts = Counter(tasks(0))
    expected = [5000 * size / 1000 for size in SIZES.values()]
    assert stats.chisquare([counts[task] for task in SIZES], expected).pvalue > 0.001


def test_another_seed_draws_differently() -> None:
    assert tasks(0) != tasks(1)
