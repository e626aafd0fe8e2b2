"""Temperatures equal scipy's, calibration equals scikit-learn's, and cross-fitting never uses a row's own half."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, special
from sklearn.calibration import calibration_curve
from sklearn.metrics import log_loss

from polytask import seeds
from polytask.evaluation import calibration
from polytask.evaluation.calibration import (
    HIGHEST,
    LOWEST,
    before_and_after,
    calibrate,
    class_scores,
    coverage,
    cross_fitted,
    fit_temperature,
    quality,
    reliability,
    softmax,
    sure_spans,
)
from polytask.types import YES_NO, LabelSpace


def drawn(rows: int, classes: int, temperature: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Scores, and labels that are drawn from softmax(scores / temperature)."""
    rng = np.random.default_rng(seed)
    scores = rng.normal(size=(rows, classes)) * 3
    p = special.softmax(scores / temperature, 1)
    return scores, np.array([rng.choice(classes, p=row) for row in p])


def loss(log_temperature: float, scores: np.ndarray, gold: np.ndarray) -> float:
    """The log loss of the rows, and of ten more that are labelled by the probabilities of temperature 1."""
    log_q = special.log_softmax(scores / np.exp(log_temperature), 1)
    believed = (special.softmax(scores, 1) * log_q).sum(1).mean()
    return float(-log_q[np.arange(len(gold)), gold].sum() - 10 * believed)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([2, 3, 7]), st.floats(0.3, 5), st.sampled_from([30, 200]))
def test_the_temperature_is_that_of_scipy(seed: int, classes: int, temperature: float, rows: int) -> None:
    scores, gold = drawn(rows, classes, temperature, seed)
    ends = (np.log(LOWEST), np.log(HIGHEST))
    theirs = optimize.minimize_scalar(loss, bounds=ends, args=(scores, gold), method="bounded", options={"xatol": 1e-9})
    found = fit_temperature(scores, gold)
    if found is None:
        assert np.exp(theirs.x) == pytest.approx(LOWEST, rel=1e-3)
    else:
        assert found == pytest.approx(np.exp(theirs.x), rel=1e-4)


def test_the_temperature_of_the_labels_is_found() -> None:
    for temperature in (0.5, 1.0, 2.5):
        assert fit_temperature(*drawn(20_000, 5, temperature, 0)) == pytest.approx(temperature, rel=0.05)


def test_few_rows_move_the_temperature_less() -> None:
    """Where 1 is right, other rows suffer less than from the temperature with the lowest log loss."""
    ends = (np.log(LOWEST), np.log(HIGHEST))
    further = drawn(5000, 3, 1.0, 1000)
    ours, theirs = [], []
    for seed in range(20):
        scores, gold = drawn(30, 3, 1.0, seed)
        own = lambda t, scores=scores, gold=gold: log_loss(gold, softmax(scores, np.exp(t)), labels=range(3))  # noqa: E731
        theirs.append(optimize.minimize_scalar(own, bounds=ends, method="bounded").x)
        ours.append(np.log(fit_temperature(scores, gold) or 1.0))
    mean = [np.mean([log_loss(further[1], softmax(further[0], np.exp(t))) for t in some]) for some in (ours, theirs)]
    assert mean[0] < mean[1]


def test_rows_that_determine_no_temperature() -> None:
    scores, _ = drawn(100, 3, 1.0, 0)
    many = np.tile(scores, (10_000, 1))
    assert fit_temperature(many, many.argmax(1)) is None  # all right: the lower the better
    assert fit_temperature(many, many.argmin(1)) == HIGHEST  # all wrong: the higher the better
    assert fit_temperature(np.full((5, 2), np.nan), np.zeros(5, dtype=np.int64)) is None
    assert fit_temperature(np.zeros((50, 3)), np.arange(50) % 3) is None  # the outputs do not depend on the text


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([2, 4]), st.integers(5, 400))
def test_bins_and_errors_are_those_of_scikit_learn(seed: int, classes: int, rows: int) -> None:
    scores, gold = drawn(rows, classes, 2.0, seed)
    p = softmax(scores)
    np.testing.assert_allclose(p, special.softmax(scores, 1), atol=1e-15)
    right, confidence = p.argmax(1) == gold, p.max(1)
    bins = reliability(gold, p)
    accuracy, mean = calibration_curve(right, confidence, n_bins=15, strategy="uniform")
    np.testing.assert_allclose([one["accuracy"] for one in bins], accuracy)
    np.testing.assert_allclose([one["confidence"] for one in bins], mean)
    assert sum(one["rows"] for one in bins) == rows
    found = quality(gold, p)
    error = sum(one["rows"] * abs(a - m) for one, a, m in zip(bins, accuracy, mean, strict=True)) / rows
    assert found["calibration_error"] == pytest.approx(error)
    assert found["log_loss"] == pytest.approx(log_loss(gold, p, labels=range(classes)))


def test_yes_and_no_are_two_classes() -> None:
    outputs = torch.tensor([-2.0, 0.5, 3.0])
    expected = torch.stack((-outputs, outputs), -1).double().sigmoid().numpy()
    scores_NC = class_scores(outputs, [0, 1, 1], YES_NO).scores_NC
    np.testing.assert_allclose(softmax(scores_NC), expected)
    np.testing.assert_allclose(softmax(scores_NC, 2.0)[:, 1], (outputs / 2).double().sigmoid())


def test_several_classes_per_row_are_calibrated_by_their_binary_cross_entropy() -> None:
    labels = LabelSpace("multilabel", ("A", "B", "C"), separator="|")
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(300, 3))
    gold = (rng.random((300, 3)) < special.expit(logits)).astype(np.float32)
    outputs = torch.from_numpy(3 * logits).float()  # three times as sure as they should be
    found = calibrate(outputs, gold, labels, "task", None, fit=True)
    assert 2 < found["temperature"] < 4
    assert (found["rows"], found["coverage"]) == (900, None)
    for temperature in (1.0, found["temperature"]):
        loss = torch.nn.functional.binary_cross_entropy_with_logits(outputs / temperature, torch.from_numpy(gold))
        name = "before" if temperature == 1 else "after"
        measured = before_and_after(outputs, gold, labels, found["temperature"])[name]
        assert measured["log_loss"] == pytest.approx(loss.item(), rel=1e-5)
    assert found["after"]["calibration_error"] < found["before"]["calibration_error"]


def test_words_with_a_tag_are_the_rows_and_those_of_a_text_stay_in_one_half() -> None:
    labels = LabelSpace("tokens", ("A", "B", "C"), scheme="plain")
    rng = np.random.default_rng(0)
    gold = np.full((40, 6), -1)
    for n, words in enumerate(rng.integers(1, 5, 40)):
        gold[n, :words] = rng.integers(0, 3, words)
    outputs = torch.from_numpy(rng.normal(size=(40, 4, 4))).float()  # no text has more than four words
    outputs[..., :-1] += torch.eye(3)[torch.from_numpy(gold[:, :4])]
    rows = class_scores(outputs, gold, labels)
    assert len(rows.gold_N) == len(rows.example_N) == len(rows.scores_NC) == (gold >= 0).sum()
    np.testing.assert_allclose(rows.scores_NC[:1], outputs[:1, 0, :-1].double())
    p_NC = cross_fitted(rows.scores_NC, rows.gold_N, "task", rows.example_N)
    used_N = np.log(p_NC[:, 0] / p_NC[:, 1]) / (rows.scores_NC[:, 0] - rows.scores_NC[:, 1])
    inverse = {n: set(used_N[rows.example_N == n].round(6)) for n in range(40)}
    assert all(len(own) == 1 for own in inverse.values())
    assert len(set.union(*inverse.values())) == 2
    assert calibrate(outputs, gold, labels, "task", None, fit=True)["rows"] == (gold >= 0).sum()


def test_coverage_of_tags_is_that_of_predicted_spans() -> None:
    labels = LabelSpace("tokens", ("O", "B-a", "I-a"), scheme="bio")
    gold = np.array([[0, 1, 2, 0], [1, 0, 0, -1]])
    tags = np.array([[1, 1, 2, 0], [1, 2, 0, 0]])
    outputs = torch.nn.functional.pad(4.0 * torch.eye(3)[torch.from_numpy(tags)], (0, 1), value=1.0)
    p = float(outputs[0, 0, :3].softmax(-1).max())
    rows = class_scores(outputs, gold, labels)
    confidence, right = sure_spans(rows, softmax(rows.scores_NC), labels)
    np.testing.assert_allclose(confidence, [p, p * p, p * p], rtol=1e-6)
    assert right.tolist() == [False, True, False]
    outputs[..., 0] = 9.0  # no span is predicted
    found = calibrate(outputs, gold, labels, "task", 0.5, fit=True)["coverage"]
    assert found["curve"] == []
    assert found["chosen"] == {"threshold": 0.5, "coverage": 0.0, "accuracy": None}


def test_each_half_has_the_temperature_of_the_other() -> None:
    scores, gold = drawn(101, 3, 2.0, 1)
    found = cross_fitted(scores, gold, "task")
    order = seeds.generator(0, "calibrate", "task").permutation(101)
    first, second = order[:50], order[50:]
    for used, fitted in ((first, second), (second, first)):
        temperature = fit_temperature(scores[fitted], gold[fitted])
        assert temperature is not None
        np.testing.assert_allclose(found[used], special.softmax(scores[used] / temperature, 1))
    changed = gold.copy()
    changed[first] = (changed[first] + 1) % 3
    np.testing.assert_array_equal(cross_fitted(scores, changed, "task")[first], found[first])


def test_cross_fitting_does_not_flatter() -> None:
    """With labels that no temperature explains, the fit on all rows looks better than it is on new rows."""
    flattered, honest = [], []
    for seed in range(60):
        scores, gold = drawn(40, 3, 1.0, seed)
        temperature = fit_temperature(scores, gold)
        if temperature is not None:
            flattered.append(quality(gold, softmax(scores, temperature))["log_loss"])
            honest.append(quality(gold, cross_fitted(scores, gold, "t"))["log_loss"])
    new_scores, new_gold = drawn(20_000, 3, 1.0, 999)
    truth = quality(new_gold, softmax(new_scores))["log_loss"]  # the best that any temperature can do
    assert np.mean(flattered) < truth
    assert np.mean(honest) > np.mean(flattered)


def test_coverage_and_accuracy_of_all_thresholds() -> None:
    rng = np.random.default_rng(0)
    confidence = rng.choice(np.linspace(0.3, 1, 30), 150)  # with ties
    right = rng.random(150) < confidence
    found = coverage(confidence, right, threshold=0.7)
    for share, accuracy, threshold in found["curve"]:
        kept = confidence >= threshold
        assert share == pytest.approx(kept.mean())
        assert accuracy == pytest.approx(right[kept].mean())
    assert found["curve"][-1][0] == 1.0
    kept = confidence >= 0.7
    assert found["chosen"] == {"threshold": 0.7, "coverage": kept.mean(), "accuracy": right[kept].mean()}
    for goal in found["goals"]:
        possible = [(confidence >= t).mean() for t in confidence if right[confidence >= t].mean() >= goal["accuracy"]]
        assert goal["coverage"] == pytest.approx(max(possible, default=0.0))
    none = coverage(np.array([0.4, 0.5]), np.array([False, False]), threshold=0.9)
    assert none["chosen"] == {"threshold": 0.9, "coverage": 0.0, "accuracy": None}
    assert none["goals"][0] == {"accuracy": 0.9, "coverage": 0.0, "threshold": None}


def test_many_rows_are_few_points() -> None:
    rng = np.random.default_rng(0)
    found = coverage(rng.random(5000), rng.random(5000) < 0.5)
    assert len(found["curve"]) <= calibration.MAX_POINTS
    assert found["chosen"] is None


def test_what_is_reported() -> None:
    labels = LabelSpace("classes", classes=("a", "b", "c"))
    scores, gold = drawn(300, 3, 2.0, 3)
    outputs = torch.from_numpy(scores).float()
    found = calibrate(outputs, gold, labels, "t", 0.8, fit=True)
    assert found["temperature"] == pytest.approx(fit_temperature(outputs.double().numpy(), gold))
    assert found["after"]["log_loss"] < found["before"]["log_loss"]
    assert found["after"]["calibration_error"] < found["before"]["calibration_error"]
    assert found["problem"] is None
    off = calibrate(outputs, gold, labels, "t", None, fit=False)
    assert (off["temperature"], off["after"], off["problem"], off["coverage"]["chosen"]) == (1.0, None, None, None)
    few = calibrate(outputs[:19], gold[:19], labels, "t", None, fit=True)
    assert (few["temperature"], few["problem"]) == (1.0, "fewer than 20 dev rows")
    none = calibrate(torch.zeros(300, 3), gold, labels, "t", None, fit=True)
    assert (none["temperature"], none["problem"]) == (1.0, "the dev rows do not determine one")
