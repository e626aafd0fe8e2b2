"""The outlook agrees with simulated studies and with the power of the t test."""

import numpy as np
import pytest
from scipy import optimize, stats

from polytask.evaluation.comparison.power import Outlook, assumed
from polytask.evaluation.comparison.seed_noise import SharedNoise
from polytask.evaluation.comparison.statistics import Noise


@pytest.mark.parametrize("seeds", [3, 10])
def test_two_variants_without_example_noise_are_the_t_test(seeds: int) -> None:
    """The gap at which the noncentral t has 80 % power."""
    found = Outlook("task", 0.02, 1e-9, 10_000, 1, 1).gap(seeds)
    limit = stats.t.isf(0.025, seeds - 1)
    size = optimize.brentq(lambda z: stats.nct.sf(limit, seeds - 1, z) - 0.8, 0.1, 50)
    assert found == pytest.approx(size * 0.02 / np.sqrt(seeds), rel=0.02)


def test_a_study_of_the_planned_kind_claims_the_gap_in_80_percent() -> None:
    """Six variants, two views, five seeds: normal noise of seeds and examples, judged with what the study shares."""
    plan = Outlook("task", 0.015, 0.004, 2000, 5, 2)
    gap = plan.gap(5)
    assert gap is not None
    rng, claims, studies = np.random.default_rng(0), 0, 600
    for _ in range(studies):
        runs = gap + 0.015 * rng.normal(size=5) + 0.004 * rng.normal()
        own = Noise(((runs.var(ddof=1) / 5, 4),), 0.004**2, 0.0, 1999)
        claims += SharedNoise(own, 0.015**2, float("inf"), 5, 2).half_width(0.05 / 10) <= runs.mean()
    assert claims / studies == pytest.approx(0.8, abs=0.06)


def test_seeds_and_gaps_agree() -> None:
    plan = Outlook("task", 0.014, 0.003, 5000, 4, 3)
    assert plan.gap(1) is None
    gaps = [plan.gap(seeds) for seeds in (2, 3, 5, 10, 30)]
    assert gaps == sorted(gaps, reverse=True)
    needed = plan.seeds_for(0.05)
    assert needed is not None
    assert plan.gap(needed) <= 0.05 < plan.gap(needed - 1)
    assert plan.seeds_for(0.001) is None  # the dev set alone is noisier than that
    assert plan.seeds_for(5.0) == 2


def test_defaults_follow_the_dev_sets() -> None:
    small, large, mean = assumed({"a": 100, "b": 10_000}, ["a", "b"], "mean", 2)
    assert (small.view, large.view, mean.view) == ("a", "b", "mean")
    assert small.example_error == pytest.approx(10 * large.example_error)
    assert mean.example_error == pytest.approx(np.hypot(small.example_error, large.example_error) / 2)
    assert small.seed_deviation == pytest.approx(0.01 * np.sqrt(2))
    assert {plan.views for plan in (small, large, mean)} == {3}
    assert [plan.view for plan in assumed({"a": 100}, [], "mean", 2)] == ["a"]
