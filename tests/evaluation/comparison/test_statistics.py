"""The statistics agree with brute force, and with scipy where that is the same."""

import numpy as np
import pytest
from scipy import stats

from polytask.evaluation.comparison.statistics import (
    SMALLEST_P,
    Noise,
    Runs,
    holm,
    influence,
    interval,
    noise,
    swap_p,
    swapped,
)
from polytask.evaluation.metrics import METRICS, Metric
from polytask.kinds.tokens import tallies

COUNTED = [metric for metric in METRICS if metric.from_margins is not None]
CORRELATIONS = [metric for metric in METRICS if metric.name in ("pearson", "spearman")]


def named(metric: Metric) -> str:
    return f"{metric.name}-{metric.kinds[0]}"


def left_out(metric: Metric, gold: np.ndarray, predicted: np.ndarray) -> np.ndarray:
    """The delete-one jackknife, one example at a time."""
    n = len(gold)
    without = np.array([metric.function(*(np.delete(rows, i, axis=0) for rows in (gold, predicted))) for i in range(n)])
    return (n - 1) * (without.mean() - without)


# --- influence --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("metric", COUNTED, ids=named)
@pytest.mark.parametrize("seed", range(3))
def test_influence_of_counts_is_the_jackknife(metric: Metric, seed: int) -> None:
    rng = np.random.default_rng(seed)
    number = 4 if "classes" in metric.kinds else 2
    gold = rng.integers(0, number, 60)
    predicted = np.where(rng.random(60) < 0.6, gold, rng.integers(0, number, 60))
    if metric.kinds == ("multilabel",):
        gold = rng.integers(0, 2, (60, 4))
        predicted = np.where(rng.random((60, 4)) < 0.7, gold, 1 - gold)
    if metric.kinds == ("tokens",):
        tags = [[["O", "B-X", "I-X", "B-Y"][k] for k in rng.integers(0, 4, 1 + n % 7)] for n in range(60)]
        guessed = [[tag if rng.random() < 0.7 else "B-X" for tag in row] for row in tags]
        gold, predicted = tallies(tags, guessed, "XY", "bio")
    found = influence(metric, gold, predicted, number)
    np.testing.assert_allclose(found, left_out(metric, gold, predicted), atol=1e-12)
    assert found.sum() == pytest.approx(0, abs=1e-9)


def test_influence_on_accuracy_is_right_or_wrong() -> None:
    accuracy = METRICS[0]
    gold, predicted = np.array([0, 1, 1, 0]), np.array([0, 1, 0, 0])
    np.testing.assert_allclose(influence(accuracy, gold, predicted, 2), [0.25, 0.25, -0.75, 0.25])


@pytest.mark.parametrize("metric", CORRELATIONS, ids=named)
@pytest.mark.parametrize("decimals", [0, 9], ids=["ties", "no ties"])
def test_influence_on_correlations_is_near_the_jackknife(metric: Metric, decimals: int) -> None:
    rng = np.random.default_rng(3)
    gold = rng.normal(size=400).round(decimals)
    predicted = (gold + 0.7 * rng.normal(size=400)).round(decimals)
    found, slow = influence(metric, gold, predicted, 0), left_out(metric, gold, predicted)
    assert np.corrcoef(found, slow)[0, 1] > 0.999
    assert found.std() == pytest.approx(slow.std(), rel=0.02)


@pytest.mark.parametrize("metric", CORRELATIONS, ids=named)
@pytest.mark.parametrize("predicted", [np.full(5, 0.1), np.array([0, 1, np.nan, 2, 3])], ids=["constant", "diverged"])
def test_runs_without_a_correlation_have_no_influence(metric: Metric, predicted: np.ndarray) -> None:
    assert (influence(metric, np.arange(5.0), predicted, 0) == 0).all()


# --- noise ------------------------------------------------------------------------------------------------------------


def differences(scores: list[float], n: int = 50) -> Runs:
    """Runs whose examples add no noise of their own."""
    return Runs(np.array(scores), np.zeros((len(scores), n)))


def test_with_seed_noise_only_it_is_the_paired_t_test() -> None:
    one, two = [0.81, 0.84, 0.83, 0.85], [0.80, 0.80, 0.82, 0.81]
    found = noise(
        [
            [
                differences(one),
            ]
        ],
        [0.0],
    )
    assert found.seeds == ((pytest.approx(np.var(one, ddof=1) / 4), 3),)
    paired = noise([[differences(one) - differences(two)]], [0.0])
    wanted = stats.ttest_rel(one, two)
    assert paired.p_value(np.mean(one) - np.mean(two)) == pytest.approx(wanted.pvalue, rel=1e-6)
    low, high = wanted.confidence_interval(0.95)
    assert paired.half_width(0.05) == pytest.approx((high - low) / 2)


def test_one_seed_is_the_t_test_over_examples() -> None:
    parts = np.random.default_rng(0).normal(0.1, 1.0, 40)
    runs = Runs(np.array([parts.mean()]), (parts - parts.mean())[None])
    found = noise([[runs]], [0.0])
    wanted = stats.ttest_1samp(parts, 0)
    assert found.seeds == ()
    assert found.p_value(float(parts.mean())) == pytest.approx(wanted.pvalue, rel=1e-6)
    low, high = wanted.confidence_interval(0.95)
    assert 2 * found.half_width(0.05) == pytest.approx(high - low)


def test_many_seeds_agree_with_the_bootstrap_over_examples_and_seeds() -> None:
    rng = np.random.default_rng(1)
    seeds, n = 25, 300
    parts = 0.05 * rng.normal(size=(seeds, 1)) + rng.normal(size=n) + 0.5 * rng.normal(size=(seeds, n))
    scores = parts.mean(1)
    found = noise([[Runs(scores, parts - scores[:, None])]], [0.0])
    weights_n = rng.multinomial(n, np.full(n, 1 / n), 4000) / n
    weights_s = rng.multinomial(seeds, np.full(seeds, 1 / seeds), 4000) / seeds
    boot = ((weights_n @ parts.T) * weights_s).sum(1)
    deviation = np.sqrt(found.seeds[0][0] + found.examples - found.both)
    assert deviation == pytest.approx(boot.std(), rel=0.05)


def test_half_width_is_exact_at_both_ends_and_never_below_the_examples() -> None:
    assert Noise(((4.0, 2),), 0.0, 0.0, 99).half_width(0.05) == pytest.approx(2 * stats.t.isf(0.025, 2))
    assert Noise((), 4.0, 0.0, 99).half_width(0.05) == pytest.approx(2 * stats.t.isf(0.025, 99))
    assert Noise(((0.0, 2),), 4.0, 3.9, 99).half_width(0.05) == pytest.approx(2 * stats.t.isf(0.025, 99))


def test_no_common_seeds_add_both_variances() -> None:
    one, two = differences([0.80, 0.84]), differences([-0.70, -0.74, -0.75])
    found = noise([[one], [two]], [0.0])
    assert [df for _, df in found.seeds] == [1, 2]
    assert found.seeds[1][0] == pytest.approx(np.var([0.70, 0.74, 0.75], ddof=1) / 3)


def test_the_mean_of_tasks_shares_seeds_but_not_examples() -> None:
    rng = np.random.default_rng(2)
    tasks = [Runs(rng.normal(size=3), rng.normal(size=(3, n))) for n in (40, 90)]
    found = noise([tasks], [0.0, 0.0])
    alone = [noise([[task]], [0.0]) for task in tasks]
    assert found.examples == pytest.approx(sum(task.examples for task in alone) / 4)
    assert found.both == pytest.approx(sum(task.both for task in alone) / 4)
    assert found.seeds[0][0] == pytest.approx(np.var((tasks[0].scores_S + tasks[1].scores_S) / 2, ddof=1) / 3)


def test_counts_never_prove_equality() -> None:
    same = Runs(np.zeros(3), np.zeros((3, 100)))
    found = noise([[same]], [2.0])
    assert found.half_width(0.05) > 0.02
    assert found.seeds[0][0] > 0


def test_p_values_at_the_edges() -> None:
    none = Noise((), 0.0, 0.0, 9)
    assert none.p_value(0.0) == 1.0
    assert none.p_value(0.5) == SMALLEST_P
    some = Noise(((1.0, 1),), 1.0, 0.5, 9)
    p = [some.p_value(size) for size in (0.0, 0.01, 1.0, 10.0, 1e9)]
    assert p == sorted(p, reverse=True)
    assert some.p_value(-3.0) == some.p_value(3.0)
    assert some.half_width(some.p_value(3.0)) == pytest.approx(3.0)


@pytest.mark.parametrize(("mean", "half"), [(1.0, 0.02), (0.0, 0.02), (0.5, 30.0), (0.97, 0.0)])
def test_intervals_hold_the_mean_and_stay_in_range(mean: float, half: float) -> None:
    low, high = interval(mean, half, 0.0, 1.0, 100 / 102)
    assert 0.0 <= low <= mean <= high <= 1.0


def test_intervals_in_the_middle_are_plain() -> None:
    assert interval(0.5, 0.03, 0.0, 1.0) == pytest.approx((0.47, 0.53), abs=1e-4)


# --- tests ------------------------------------------------------------------------------------------------------------


def test_swaps_of_right_and_wrong_are_the_exact_mcnemar_test() -> None:
    parts = np.array([1.0] * 14 + [-1.0] * 5 + [0.0] * 81)
    found = swap_p(parts.mean(), swapped(parts[None], 40_000, np.random.default_rng(0))[:, 0])
    assert found == pytest.approx(stats.binomtest(5, 19).pvalue, abs=0.005)


def test_swaps_agree_with_scipy() -> None:
    parts = np.random.default_rng(4).normal(0.2, 1.0, 60)
    found = swap_p(parts.mean(), swapped(parts[None], 20_000, np.random.default_rng(0))[:, 0])
    wanted = stats.permutation_test(
        (parts,), np.mean, permutation_type="samples", n_resamples=20_000, rng=np.random.default_rng(1)
    )
    assert found == pytest.approx(wanted.pvalue, abs=0.012)


def test_swaps_of_nothing_give_p_1_and_the_clearest_difference_the_smallest() -> None:
    rng = np.random.default_rng(0)
    assert swap_p(0.0, swapped(np.zeros((1, 30)), 99, rng)[:, 0]) == 1.0
    assert swap_p(1.0, swapped(np.ones((1, 30)), 99, rng)[:, 0]) == 0.01


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([]) == []
