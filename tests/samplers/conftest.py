"""How well a sampler's choices fit the shares that theory gives."""

from collections import Counter
from collections.abc import Callable, Sequence

import pytest
from scipy import stats

from polytask.samplers.base import StepSampler

Fit = Callable[[StepSampler, Sequence[float]], float]


@pytest.fixture
def fit() -> Fit:
    """fit(sampler, shares): the p-value of chi-square over the next 2000 steps, each of one task."""

    def p_value(sampler: StepSampler, shares: Sequence[float], steps: int = 2000) -> float:
        taken = [sampler.next_step() for _ in range(steps)]
        assert all(len(draws) == 1 and draws[0].count == sampler.context.batch_size for draws in taken)
        counts = Counter(draws[0].task for draws in taken)
        expected = [steps * share / sum(shares) for share in shares]
        return float(stats.chisquare([counts[task] for task in sampler.tasks], expected).pvalue)

    return p_value
