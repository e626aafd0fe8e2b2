"""Every metric has a finite value and an interval that covers the truth, also if a run diverged."""

import warnings

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from polytask.evaluation.metrics import metrics_for
from polytask.evaluation.scoring import MOST_AUC_CLASSES, Predictions, score
from polytask.types import YES_NO, LabelSpace, TaskScore, UserError

SCORES = LabelSpace("score", low=0.0, high=5.0)
PLAIN = LabelSpace("text", vocabulary=50)


def classes(number: int) -> LabelSpace:
    return LabelSpace("classes", tuple(f"c{i}" for i in range(number)))


def values(result: TaskScore) -> dict[str, float]:
    return {name: metric.value for name, metric in result.metrics.items()}


def probabilities_of(gold: np.ndarray, number: int, rng: np.random.Generator) -> np.ndarray:
    logits = rng.normal(size=(len(gold), number)) + 1.5 * np.eye(number)[gold]
    return np.exp(logits) / np.exp(logits).sum(1, keepdims=True)


@pytest.mark.parametrize(
    ("gold", "predicted", "labels"),
    [
        ([0, 0, 0], [0, 0, 0], YES_NO),
        ([1, 1, 1], [0, 0, 0], YES_NO),
        ([0, 1, 0, 1], [1, 1, 1, 1], YES_NO),
        ([2, 2, 2], [2, 2, 2], classes(3)),
        ([0, 1, 2], [1, 1, 1], classes(3)),
        ([1], [1], classes(3)),
        ([1.0, 2.0, 3.0], [0.7, 0.7, 0.7], SCORES),
        ([2.0, 2.0, 2.0], [0.1, 0.2, 0.3], SCORES),
        ([1.0, 2.0, 3.0], [0.1, float("nan"), 0.3], SCORES),
        ([1.0, 2.0, 3.0], [0.1, float("inf"), 0.3], SCORES),
        ([2.0], [1.0], SCORES),
    ],
)
def test_cases_without_meaning_are_zero_and_silent(gold, predicted, labels: LabelSpace) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = score(Predictions(np.array(gold), np.array(predicted)), labels, 0.0)
    for name, metric in result.metrics.items():
        assert np.isfinite([metric.value, metric.low, metric.high]).all(), name
        if name in ("matthews", "pearson", "spearman"):
            assert metric.value == 0.0, name


def test_tiny_splits_have_finite_intervals() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = score(Predictions(np.array([1.0, 4.0]), np.array([2.0, 3.0])), SCORES, 0.0)
    assert result.metrics["pearson"].value == pytest.approx(1.0)
    assert (result.metrics["pearson"].low, result.metrics["pearson"].high) == (-1.0, 1.0)  # two rows say nothing


def test_the_same_seed_gives_the_same_interval() -> None:
    rng = np.random.default_rng(0)
    gold, predicted = rng.integers(0, 3, 50), rng.integers(0, 3, 50)
    one, same, other = (score(Predictions(gold, predicted), classes(3), 0.0, seed=seed) for seed in (4, 4, 5))
    assert one == same != other


def test_drawn_confusion_matrices_give_the_interval_of_drawn_rows() -> None:
    rng = np.random.default_rng(2)
    gold = rng.integers(0, 4, 300)
    predicted = np.where(rng.random(300) < 0.7, gold, rng.integers(0, 4, 300))
    result = score(Predictions(gold, predicted), classes(4), 0.0)
    rows = rng.integers(0, 300, (4000, 300))
    for metric in metrics_for("classes"):
        low, high = np.quantile(metric.function(gold[rows], predicted[rows]), [0.025, 0.975])
        assert result.metrics[metric.name].low == pytest.approx(low, abs=0.012), metric.name
        assert result.metrics[metric.name].high == pytest.approx(high, abs=0.012), metric.name


def test_accuracy_intervals_cover_the_truth_about_95_percent_of_the_time() -> None:
    rng, covered = np.random.default_rng(7), 0
    for trial in range(100):
        gold = rng.integers(0, 2, 200)
        predicted = np.where(rng.random(200) < 0.8, gold, 1 - gold)
        interval = score(Predictions(gold, predicted), YES_NO, 0.0, seed=trial).metrics["accuracy"]
        covered += interval.low <= 0.8 <= interval.high
    assert 0.90 <= covered / 100 <= 0.99


def test_pearson_intervals_cover_the_truth_about_95_percent_of_the_time() -> None:
    rng, covered, truth = np.random.default_rng(8), 0, 0.6
    for trial in range(100):
        gold = rng.normal(size=150)
        predicted = truth * gold + np.sqrt(1 - truth**2) * rng.normal(size=150)
        interval = score(Predictions(gold, predicted), SCORES, 0.0, seed=trial).metrics["pearson"]
        covered += interval.low <= truth <= interval.high
    assert 0.89 <= covered / 100 <= 0.99


def test_a_class_without_rows_has_no_auc_and_a_diverged_run_has_the_worst_errors() -> None:
    gold = np.array([0, 1, 0, 1, 1, 0])
    shares = probabilities_of(gold, 3, np.random.default_rng(0))
    found = values(score(Predictions(gold, gold, shares), classes(3), 0.0))
    each = [roc_auc_score(gold == c, shares[:, c]) for c in (0, 1)]
    assert found["auc"] == pytest.approx(np.mean(each))
    nothing = np.full((6, 2), np.nan)
    diverged = score(Predictions(gold, gold, nothing), YES_NO, 0.0).metrics
    assert diverged["log_loss"].value > 30
    assert diverged["auc"].value == 0.5
    scores = score(Predictions(np.array([0.0, 5.0, 1.0, 4.0]), np.full(4, np.nan)), SCORES, 0.0).metrics
    assert scores["mae"].value == pytest.approx(4.5)


def test_predictions_that_cannot_be_scored_are_refused() -> None:
    gold = np.array([0, 1])
    with pytest.raises(UserError, match="no labelled row"):
        score(Predictions(np.array([], int), np.array([], int)), YES_NO, 0.0)
    with pytest.raises(ValueError, match="same length"):
        score(Predictions(gold, np.array([0, 1, 1])), YES_NO, 0.0)


@pytest.mark.parametrize("worst", [np.nan, np.inf, 1e30])
def test_a_diverged_perplexity_is_finite_and_never_the_best(worst: float) -> None:
    found = score(Predictions(np.array([1.0, 1.0]), np.array([1.0, worst])), PLAIN, 0.5).metrics["perplexity"]
    assert np.isfinite([found.value, found.low, found.high]).all()
    assert found.value > 1e20


def test_without_probabilities_their_metrics_are_left_out() -> None:
    gold = np.array([0, 1, 1, 0])
    without = set(score(Predictions(gold, gold), YES_NO, 0.0).metrics)
    shares = np.eye(2)[gold]
    assert set(score(Predictions(gold, gold, shares), YES_NO, 0.0).metrics) - without >= {"auc", "log_loss"}


def test_auc_of_many_classes_is_computed_only_if_it_is_the_metric_of_the_task() -> None:
    number = MOST_AUC_CLASSES + 1
    gold = np.arange(3 * number) % number
    data = Predictions(gold, gold, probabilities_of(gold, number, np.random.default_rng(0)))
    assert "auc" not in score(data, classes(number), 0.0).metrics
    assert "auc" in score(data, classes(number), 0.0, primary="auc").metrics
    few = gold % MOST_AUC_CLASSES
    shares = probabilities_of(few, MOST_AUC_CLASSES, np.random.default_rng(0))
    assert "auc" in score(Predictions(few, few, shares), classes(MOST_AUC_CLASSES), 0.0).metrics
