"""Metrics of several classes per row against scikit-learn's, their intervals, and the influence of each row."""

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn import metrics as sk

from polytask.evaluation.comparison.records import TaskData
from polytask.evaluation.comparison.statistics import _left_out, influence
from polytask.evaluation.comparison.verdict import judge
from polytask.evaluation.metrics import all_metrics_for, metrics_for
from polytask.evaluation.scoring import Predictions, score
from polytask.types import LabelSpace

METRICS = {metric.name: metric for metric in all_metrics_for("multilabel")}
SHAPES = st.tuples(st.integers(1, 12), st.integers(2, 5))
TABLES = SHAPES.flatmap(
    lambda shape: st.tuples(
        hnp.arrays(np.int64, shape, elements=st.integers(0, 1)),
        hnp.arrays(np.float64, shape, elements=st.sampled_from([0.0, 0.2, 0.5, 0.7, 0.9])),
    )
)


def space(classes: int) -> LabelSpace:
    return LabelSpace("multilabel", tuple("abcdefgh"[:classes]), separator="|")


@settings(deadline=None)
@given(TABLES)
def test_equal_to_scikit_learn(table: tuple[np.ndarray, np.ndarray]) -> None:
    gold, p_NC = table
    predicted = (p_NC >= 0.5).astype(np.int64)
    found = score(Predictions(gold, predicted, p_NC), space(gold.shape[1]), 0.0).metrics
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a class without true rows
        expected = {
            "f1_micro": sk.f1_score(gold, predicted, average="micro", zero_division=0),
            "f1_macro": sk.f1_score(gold, predicted, average="macro", zero_division=0),
            "subset_accuracy": sk.accuracy_score(gold, predicted),
            "hamming_loss": sk.hamming_loss(gold, predicted),
            "average_precision": sk.average_precision_score(gold, p_NC, average="macro"),
            "average_precision_micro": sk.average_precision_score(gold, p_NC, average="micro"),
        }
    assert set(found) == set(expected)
    for name, value in expected.items():
        assert found[name].value == pytest.approx(value, abs=1e-12), name
        assert 0 <= found[name].low <= found[name].value <= found[name].high <= 1


def some_rows(rows: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    gold = (rng.random((rows, 4)) < [0.5, 0.3, 0.2, 0.1]).astype(np.int64)
    p_NC = np.clip(0.3 * gold + 0.7 * rng.random((rows, 4)), 0, 1)
    return gold, (p_NC >= 0.5).astype(np.int64), p_NC


@pytest.mark.parametrize("name", METRICS)
def test_intervals_hold_the_value_of_many_rows(name: str) -> None:
    gold, predicted, p_NC = some_rows(20_000, seed=99)
    metric = METRICS[name]
    truth = Predictions(gold, predicted, p_NC).value(metric)
    inside = 0
    for seed in range(60):
        rows = some_rows(80, seed)
        value = score(Predictions(*rows), space(4), 0.0).metrics[name]
        inside += value.low <= truth <= value.high
    assert inside >= 52  # 95 % of 60 is 57


def test_perfect_predictions_are_not_certain() -> None:
    gold, _, _ = some_rows(30)
    found = score(Predictions(gold, gold, gold * 0.8 + 0.1), space(4), 0.0).metrics
    for name, value in found.items():
        best = 0.0 if name == "hamming_loss" else 1.0
        assert value.value == best, name
        assert abs((value.high if name == "hamming_loss" else value.low) - best) > 0.001, name


def test_a_diverged_run_has_a_score() -> None:
    gold, _, p_NC = some_rows(30)
    found = score(Predictions(gold, np.zeros_like(gold), np.full_like(p_NC, np.nan)), space(4), 0.0)
    assert found.value == 0.0
    assert all(np.isfinite([value.low, value.high]).all() for value in found.metrics.values())


def test_with_many_classes_average_precision_is_left_out() -> None:
    gold = np.eye(40, 30, dtype=np.int64)
    labels = LabelSpace("multilabel", tuple(f"c{i}" for i in range(30)), separator="|")
    p_NC = gold * 0.5 + 0.2
    assert "average_precision" not in score(Predictions(gold, gold, p_NC), labels, 0.0).metrics
    assert score(Predictions(gold, gold, p_NC), labels, 0.0, "average_precision").value == 1.0


@pytest.mark.parametrize("name", [metric.name for metric in metrics_for("multilabel")])
def test_influence_is_the_delete_one_jackknife(name: str) -> None:
    gold, predicted, _ = some_rows(40)
    metric = METRICS[name]
    values = influence(metric, gold, predicted, 4)
    np.testing.assert_allclose(values, _left_out(metric, gold, predicted), atol=1e-10)
    assert values.sum() == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("name", [metric.name for metric in metrics_for("multilabel")])
def test_a_better_variant_is_found_and_equal_ones_are_not(name: str) -> None:
    gold, _, _ = some_rows(400)
    rng = np.random.default_rng(1)

    def runs(error: float) -> np.ndarray:
        return np.stack([np.where(rng.random(gold.shape) < error, 1 - gold, gold) for _ in range(3)])

    task = TaskData("t", "multilabel", 4, name, gold, {"one": runs(0.2), "same": runs(0.2), "better": runs(0.05)})
    same, better = judge([task], "one").comparisons
    assert same.claim in ("undecided", "same")
    assert better.claim == "better"
    assert better.low <= better.difference <= better.high


def test_shapes_that_do_not_fit_are_refused() -> None:
    gold, predicted, _ = some_rows(10)
    with pytest.raises(ValueError, match="must be two lists of the same length"):
        score(Predictions(gold[:, 0], predicted[:, 0]), space(4), 0.0)
    with pytest.raises(ValueError, match="gold must be a list of at least 2 labels"):
        TaskData("t", "multilabel", 4, "f1_micro", gold[:, 0], {"one": predicted[None, :, 0]})
    with pytest.raises(ValueError, match="predictions must be"):
        TaskData("t", "multilabel", 4, "f1_micro", gold, {"one": predicted[None, :, :2]})
