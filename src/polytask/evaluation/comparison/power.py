"""The power of a planned study: the smallest gap it would claim, and the seeds that a gap needs. Knows numbers only.

The verdict's rule is applied to what the study would observe. With an assumed deviation over seeds, S seeds show a
variance of deviation^2 chi^2_{S-1} / (S - 1) and a difference of gap + normal noise; the probability of a claim is the
mean over quantiles of chi^2 of P(difference > half width).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import optimize, special

from polytask.evaluation.comparison.seed_noise import FEWEST, LEVEL, AnyNoise, SharedNoise
from polytask.evaluation.comparison.statistics import Noise

POWER = 0.8
MOST_SEEDS = 100
QUANTILES = 60
SEED_DEVIATION = 0.01
"""Assumed before any run has finished: the standard deviation of one variant's score over seeds, one point."""
DISAGREEMENT = 0.15
"""Assumed before any run has finished: the share of dev examples for which two variants predict different labels."""


@dataclass(frozen=True)
class Outlook:
    """One task, or the mean of the tasks, in a planned study."""

    view: str
    seed_deviation: float
    """Standard deviation over seeds of the difference of two runs."""
    example_error: float
    """Standard error of a difference over dev examples."""
    examples: int
    variants: int
    """The number of variants that are compared with the reference."""
    views: int

    def gap(self, seeds: int) -> float | None:
        """Returns the smallest true difference that so many seeds claim with 80 % probability; None with one seed."""
        if seeds < 2:
            return None
        halves = np.array([self._noise(seeds, q).half_width(self._level) for q in _middles(QUANTILES)])
        error = float(np.hypot(self.seed_deviation / np.sqrt(seeds), self.example_error))

        def missing(gap: float) -> float:
            return POWER - float(special.ndtr((gap - halves) / error).mean())

        return float(optimize.brentq(missing, 0.0, halves.max() + 10 * error, xtol=1e-6))

    def seeds_for(self, gap: float) -> int | None:
        """Returns the fewest seeds that claim such a gap with 80 % probability; None if a hundred do not."""
        few, many = 1, MOST_SEEDS
        if (self.gap(many) or gap) > gap:
            return None
        while many - few > 1:  # more seeds never claim less
            middle = (few + many) // 2
            few, many = (few, middle) if (self.gap(middle) or gap) <= gap else (middle, many)
        return many

    @property
    def _level(self) -> float:
        return LEVEL / (self.variants * self.views)

    def _noise(self, seeds: int, quantile: float) -> AnyNoise:
        """Returns the noise that the study would estimate if the variance over seeds is at this quantile."""
        seen = self.seed_deviation**2 * float(special.chdtri(seeds - 1, 1 - quantile)) / (seeds - 1)
        own = Noise(((seen / seeds, seeds - 1),), self.example_error**2, 0.0, max(self.examples - 1, 1))
        if self.variants < FEWEST:
            return own
        return SharedNoise(own, self.seed_deviation**2, float("inf"), self.variants, self.views)


def _middles(count: int) -> list[float]:
    return ((np.arange(count) + 0.5) / count).tolist()  # type: ignore[no-any-return]


def assumed(sizes: dict[str, int], averaged: Sequence[str], mean: str, variants: int) -> list[Outlook]:
    """Returns the outlook on tasks with dev sets of these sizes before any run has finished, from default noise.

    `averaged` are the tasks whose mean, called `mean`, is compared too; if it is empty, no mean is compared.
    """
    views = len(sizes) + bool(averaged)
    deviation = float(np.sqrt(2)) * SEED_DEVIATION
    outlooks = [
        Outlook(task, deviation, float(np.sqrt(DISAGREEMENT / n)), n, variants, views) for task, n in sizes.items()
    ]
    if averaged:
        error = float(np.sqrt(sum(DISAGREEMENT / sizes[task] for task in averaged))) / len(averaged)
        outlooks.append(Outlook(mean, deviation, error, sum(sizes[task] for task in averaged), variants, views))
    return outlooks
