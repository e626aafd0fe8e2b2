"""Intervals agree with those of scipy, and cover the truth as often as they should."""

import numpy as np
import pytest
from scipy import stats

from polytask.evaluation import intervals
from polytask.evaluation.metrics import metrics_for
from polytask.evaluation.scoring import Predictions, score
from polytask.types import YES_NO, LabelSpace

SCORES = LabelSpace("score", low=0.0, high=5.0)
CLASSES = LabelSpace("classes", ("a", "b", "c"))


@pytest.mark.parametrize(("count", "rows"), [(0, 1), (1, 1), (20, 20), (19, 20), (0, 20), (7, 150)])
def test_shares_have_the_exact_interval(count: int, rows: int) -> None:
    expected = stats.binomtest(count, rows).proportion_ci(0.95, "exact")
    assert intervals.of_share(count, rows) == pytest.approx(tuple(expected))


def test_accuracy_from_drawn_matrices_is_the_exact_interval() -> None:
    accuracy = next(m for m in metrics_for("classes") if m.name == "accuracy").from_margins
    assert accuracy is not None
    for right in (20, 19, 12, 1, 0):
        gold = np.arange(20) % 3
        predicted = np.where(np.arange(20) < right, gold, (gold + 1) % 3)
        found = intervals.of_matrix({"accuracy": accuracy}, gold, predicted, 3, 0)["accuracy"]
        assert found == pytest.approx(intervals.of_share(right, 20), abs=0.025)


def test_nothing_collapses_when_every_row_is_right() -> None:
    gold = np.arange(20) % 2
    shares = np.where(np.eye(2)[gold] > 0, 0.99, 0.01)
    found = score(Predictions(gold, gold, shares), YES_NO, 0.0).metrics
    assert str(found["accuracy"]) == "1.000 [0.832, 1.000]"
    for name in ("f1", "f1_weighted", "matthews", "auc"):
        assert 0.5 < found[name].low < 0.9, name
        assert found[name].high == 1.0, name
    assert found["calibration_error"].low == 0.0
    assert found["calibration_error"].high > 0.05
    same = np.linspace(0, 5, 20)
    for name, metric in score(Predictions(same, same), SCORES, 0.0).metrics.items():
        assert metric.high - metric.low > 0.1, name


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_very_few_rows_give_the_widest_interval_for_a_correlation(rows: int) -> None:
    found = score(Predictions(np.arange(rows), np.arange(rows)), SCORES, 0.0).metrics["spearman"]
    assert (found.low, found.high) == (-1.0, 1.0)


def test_one_class_only() -> None:
    nothing = np.zeros(20, int)
    found = score(Predictions(nothing, nothing), YES_NO, 0.0).metrics
    assert found["f1"].value == found["f1"].low == 0.0
    assert found["f1"].high > 0.5  # no row says how well yes is found


@pytest.mark.parametrize("rows", [150, 999])
def test_the_size_of_the_jackknifes_arrays_changes_nothing(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    gold = rng.integers(0, 26, rows) / 5
    predictions = Predictions(gold, np.clip(gold + rng.normal(size=rows), 0, 5))
    usual = score(predictions, SCORES, 0.0)
    for numbers in (1, 10**6):
        monkeypatch.setattr(intervals, "CACHED_NUMBERS", numbers)
        assert score(predictions, SCORES, 0.0) == usual


def coverage(name: str, labels: LabelSpace, truth: float, draw, trials: int) -> float:
    rng, covered = np.random.default_rng(1), 0
    for trial in range(trials):
        gold, predicted = draw(rng)
        found = score(Predictions(gold, predicted), labels, 0.0, seed=trial).metrics[name]
        covered += found.low <= truth <= found.high
    return covered / trials


def answers(rows: int, rate: float):
    def draw(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        gold = rng.integers(0, 2, rows)
        return gold, np.where(rng.random(rows) < rate, gold, 1 - gold)

    return draw


@pytest.mark.parametrize(("name", "truth"), [("accuracy", 0.95), ("f1", 0.95), ("matthews", 0.9)])
def test_twenty_rows_of_which_95_percent_are_right(name: str, truth: float) -> None:
    """Percentiles of resampled rows cover 64 % here: without a wrong row among the 20 they are [1, 1]."""
    assert coverage(name, YES_NO, truth, answers(20, 0.95), 100) >= 0.92


@pytest.mark.parametrize(("name", "truth"), [("pearson", 0.95), ("r2", 0.9)])
def test_twenty_scores_that_follow_closely(name: str, truth: float) -> None:
    def draw(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        gold = rng.normal(size=20)
        noise = rng.normal(size=20)
        return gold, (0.95 * gold + np.sqrt(1 - 0.95**2) * noise if name == "pearson" else gold + np.sqrt(0.1) * noise)

    assert coverage(name, SCORES, truth, draw, 100) >= 0.9


def test_groups_of_rows_give_the_error_of_single_rows() -> None:
    rng = np.random.default_rng(0)
    gold = rng.normal(size=5000)
    predicted = 0.7 * gold + rng.normal(size=5000)
    found = score(Predictions(gold, predicted), SCORES, 0.0).metrics["pearson"]
    expected = stats.pearsonr(gold, predicted).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=0.004)


def test_auc_has_delongs_error() -> None:
    """The variance by its definition: over all pairs of a row of the class and a row of the rest."""
    rng = np.random.default_rng(0)
    gold = rng.integers(0, 2, 60)
    yes = 1 / (1 + np.exp(-(rng.normal(size=60) + 1.5 * gold)))
    found = score(Predictions(gold, (yes > 0.5).astype(int), np.stack([1 - yes, yes], 1)), YES_NO, 0.0).metrics["auc"]
    above = (yes[gold == 1][:, None] > yes[gold == 0]).astype(float)
    deviation = np.sqrt(above.mean(1).var(ddof=1) / len(above) + above.mean(0).var(ddof=1) / above.shape[1])
    reach = stats.t.ppf(0.975, 59) * deviation / (found.value * (1 - found.value))
    middle = np.log(found.value / (1 - found.value))
    assert found.value == pytest.approx(above.mean())
    assert found.low == pytest.approx(1 / (1 + np.exp(reach - middle)))
    assert found.high == pytest.approx(1 / (1 + np.exp(-reach - middle)))
