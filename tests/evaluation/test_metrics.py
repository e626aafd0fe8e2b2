"""Metrics agree with scikit-learn and scipy."""

import numpy as np
import pytest
from scipy import stats
from sklearn.calibration import calibration_curve
from sklearn.metrics import (
    accuracy_score,
    f1_score,
    log_loss,
    matthews_corrcoef,
    mean_absolute_error,
    precision_recall_fscore_support,
    r2_score,
    roc_auc_score,
    root_mean_squared_error,
)

from polytask.evaluation.metrics import METRICS, check_metric, margins, per_class, primary_metric
from polytask.evaluation.scoring import Predictions, score
from polytask.types import YES_NO, LabelSpace, UserError


def classes(number: int) -> LabelSpace:
    return LabelSpace("classes", tuple(f"c{i}" for i in range(number)))


SCORES = LabelSpace("score", low=0.0, high=5.0)


def values(result) -> dict[str, float]:
    return {name: metric.value for name, metric in result.metrics.items()}


@pytest.mark.parametrize("number", [2, 3, 7])
@pytest.mark.parametrize("seed", range(5))
def test_class_metrics_equal_scikit_learn(number: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    gold = rng.integers(0, number, 60)
    predicted = np.where(rng.random(60) < 0.6, gold, rng.integers(0, number, 60))
    found = values(score(Predictions(gold, predicted), classes(number), 0.5))
    assert found["accuracy"] == pytest.approx(accuracy_score(gold, predicted))
    assert found["f1"] == pytest.approx(f1_score(gold, predicted, average="macro"))
    assert found["matthews"] == pytest.approx(matthews_corrcoef(gold, predicted))


@pytest.mark.parametrize("seed", range(5))
def test_yes_no_f1_is_that_of_yes(seed: int) -> None:
    rng = np.random.default_rng(seed)
    gold, predicted = rng.integers(0, 2, 40), rng.integers(0, 2, 40)
    found = values(score(Predictions(gold, predicted), YES_NO, 0.5))
    assert found["f1"] == pytest.approx(f1_score(gold, predicted))
    assert found["matthews"] == pytest.approx(matthews_corrcoef(gold, predicted))


def test_macro_f1_leaves_out_classes_that_never_occur() -> None:
    gold, predicted = np.array([0, 0, 1, 1]), np.array([0, 1, 1, 1])
    assert values(score(Predictions(gold, predicted), classes(9), 0.0))["f1"] == pytest.approx(
        f1_score(gold, predicted, average="macro")
    )


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("tied", [False, True])
def test_correlations_equal_scipy(seed: int, tied: bool) -> None:
    rng = np.random.default_rng(seed)
    gold = rng.random(80) * 5
    predicted = gold + rng.normal(size=80)
    if tied:
        gold, predicted = gold.round(), predicted.round()
    found = values(score(Predictions(gold, predicted.astype(np.float32)), SCORES, 0.1))
    assert found["pearson"] == pytest.approx(stats.pearsonr(gold, predicted).statistic, abs=1e-6)
    assert found["spearman"] == pytest.approx(stats.spearmanr(gold, predicted).statistic, abs=1e-6)


BY_LABELS = [metric for metric in METRICS if metric.columns is None]


@pytest.mark.parametrize("metric", BY_LABELS, ids=lambda metric: f"{metric.name}-{metric.kinds[0]}")
def test_a_metric_over_leading_axes_is_the_metric_row_by_row(metric) -> None:
    rng = np.random.default_rng(3)
    shape = (2, 3, 50, *{"multilabel": (4,), "tokens": (3, 4)}.get(metric.kinds[0], ()))
    lowest = 1 if metric.kinds == ("match",) else 0  # ranks start at 1
    gold, predicted = rng.integers(lowest, 2 + lowest, shape), rng.integers(lowest, 2 + lowest, shape)
    together = metric.function(gold, predicted)
    assert together.shape == (2, 3)
    for index in np.ndindex(2, 3):
        assert together[index] == pytest.approx(float(metric.function(gold[index], predicted[index])))


def test_matthews_does_not_overflow_on_large_splits() -> None:
    gold = np.repeat([0, 1], 1_000_000)
    assert values(score(Predictions(gold, gold), YES_NO, 0.0))["matthews"] == pytest.approx(1.0)


def test_thousands_of_classes_need_no_square_matrix() -> None:
    rng = np.random.default_rng(0)
    gold, predicted = rng.integers(0, 8000, 500), rng.integers(0, 8000, 500)
    predicted[:250] = gold[:250]
    found = values(score(Predictions(gold, predicted), classes(8000), 0.0))
    assert found["accuracy"] == pytest.approx(accuracy_score(gold, predicted))
    assert found["f1"] == pytest.approx(f1_score(gold, predicted, average="macro"))


def test_per_class_equals_scikit_learn() -> None:
    rng = np.random.default_rng(1)
    gold, predicted = rng.integers(0, 4, 50), rng.integers(0, 3, 50)
    expected = precision_recall_fscore_support(gold, predicted, labels=range(4), zero_division=0)
    for name, numbers in zip(("precision", "recall", "f1", "support"), expected, strict=True):
        assert per_class(margins(gold, predicted, 4))[name] == pytest.approx(numbers), name


def probabilities_of(gold: np.ndarray, number: int, rng: np.random.Generator) -> np.ndarray:
    logits = rng.normal(size=(len(gold), number)) + 1.5 * np.eye(number)[gold]
    return np.exp(logits) / np.exp(logits).sum(1, keepdims=True)


@pytest.mark.parametrize("number", [2, 3, 6])
@pytest.mark.parametrize("seed", range(3))
def test_metrics_of_probabilities_equal_scikit_learn(number: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    gold = rng.permutation(np.arange(80) % number)
    shares = probabilities_of(gold, number, rng).round(2)  # ties, as in saved files
    shares /= shares.sum(1, keepdims=True)
    predicted = shares.argmax(1)
    labels = YES_NO if number == 2 else classes(number)
    found = values(score(Predictions(gold, predicted, shares), labels, 0.0))
    many = {} if number == 2 else {"multi_class": "ovr", "average": "macro"}
    assert found["auc"] == pytest.approx(roc_auc_score(gold, shares[:, 1] if number == 2 else shares, **many))
    assert found["log_loss"] == pytest.approx(log_loss(gold, shares, labels=range(number)))
    assert found["f1_weighted"] == pytest.approx(f1_score(gold, predicted, average="weighted"))
    right, confidence = (predicted == gold).astype(int), shares.max(1)
    accuracy, mean = calibration_curve(right, confidence, n_bins=15)
    inside = np.histogram(confidence, np.linspace(0, 1, 16))[0]
    expected = np.abs(accuracy - mean) @ inside[inside > 0] / len(gold)
    assert found["calibration_error"] == pytest.approx(expected, abs=0.02)  # bins are closed on the other side there


@pytest.mark.parametrize("seed", range(3))
def test_errors_of_scores_equal_scikit_learn(seed: int) -> None:
    rng = np.random.default_rng(seed)
    gold = rng.random(60) * 5
    predicted = gold + rng.normal(size=60)
    found = score(Predictions(gold, predicted), SCORES, 0.0)
    assert values(found)["mae"] == pytest.approx(mean_absolute_error(gold, predicted))
    assert values(found)["rmse"] == pytest.approx(root_mean_squared_error(gold, predicted))
    assert values(found)["r2"] == pytest.approx(r2_score(gold, predicted))
    directions = {name: metric.greater_is_better for name, metric in found.metrics.items()}
    assert directions == {"pearson": True, "spearman": True, "mae": False, "rmse": False, "r2": True}
    assert score(Predictions(gold, predicted), SCORES, 0.0, primary="mae").greater_is_better is False


def test_the_primary_metric() -> None:
    assert [primary_metric(kind) for kind in ("classes", "yes_no", "score")] == ["accuracy", "accuracy", "pearson"]
    assert check_metric(None, "score", "tasks.a.metric") == "pearson"
    gold = np.array([0, 1, 1])
    assert score(Predictions(gold, gold), YES_NO, 0.25).primary == "accuracy"
    chosen = score(Predictions(gold, gold), YES_NO, 0.25, primary="f1")
    assert (chosen.primary, chosen.value, chosen.loss, chosen.examples) == ("f1", 1.0, 0.25, 3)


def test_errors_say_what_is_allowed() -> None:
    gold = np.array([0, 1])
    with pytest.raises(UserError, match=r"'pearson' for kind yes_no. Valid: accuracy, auc, .*f1_weighted, log_loss"):
        score(Predictions(gold, gold), YES_NO, 0.0, primary="pearson")
    with pytest.raises(UserError, match=r"'rmes' for kind score .did you mean rmse"):
        score(Predictions(gold, gold), SCORES, 0.0, primary="rmes")
    with pytest.raises(UserError, match="which is not a built-in metric of kind score; use one of: pearson, spearman"):
        check_metric("f1", "score", "tasks.a.metric")
    with pytest.raises(UserError, match=r"^tasks.a.metric: .* which needs probabilities; use one of: accuracy, "):
        check_metric("auc", "classes", "tasks.a.metric")
    assert check_metric("mae", "score", "tasks.a.metric") == "mae"


PLAIN = LabelSpace("text", vocabulary=50)


def test_perplexity_by_hand_and_its_interval() -> None:
    asked, surprise = np.array([1.0, 3.0, 0.0]), np.array([np.log(2), 3 * np.log(4), 0.0])
    found = score(Predictions(asked, surprise), PLAIN, 0.5)
    assert found.metrics["perplexity"].value == pytest.approx(2 ** (7 / 4))  # the mean over tokens, not over texts
    assert found.primary == "perplexity"
    assert not found.greater_is_better
    assert score(Predictions([1], [1]), YES_NO, 0.5).greater_is_better
    rng = np.random.default_rng(0)
    asked = rng.integers(1, 20, 400).astype(float)
    found = score(Predictions(asked, rng.gamma(4.0, 0.5, 400) * asked), PLAIN, 0.5).metrics["perplexity"]
    assert found.low < np.exp(2) < found.high  # the mean of that gamma distribution is 2
    assert 0.2 < found.high - found.low < 2.5
