"""Calibration of probabilities: a temperature for a task's outputs, and how often confident predictions are right.

Confidence is the probability of the predicted class. Knows arrays of outputs and labels; knows no model and no file.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from polytask import seeds
from polytask.evaluation.metrics import CALIBRATION_BINS, chosen_metric, confidence_gaps
from polytask.evaluation.scoring import Predictions
from polytask.kinds.base import ClassScores
from polytask.kinds.schemes import find_spans
from polytask.kinds.table import KINDS
from polytask.kinds.tokens import span_probabilities
from polytask.types import LabelSpace

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]
Json = dict[str, Any]

LOWEST, HIGHEST = 0.05, 20.0
"""A higher temperature is replaced by HIGHEST, with which all classes are about equally probable; no temperature below
LOWEST is used, because too few rows are wrong to determine one."""
FEWEST_ROWS = 20
PRIOR_ROWS = 10
"""Rows that count as labelled by the probabilities of temperature 1, so that few dev rows do not decide alone."""
GOALS = (0.9, 0.95, 0.99)
"""The accuracies for which the coverage is reported."""
MAX_POINTS = 200
"""Points of the coverage-accuracy curve that are kept."""
NEWTON_STEPS = 100


# --- the temperature --------------------------------------------------------------------------------------------------
def class_scores(outputs: Tensor, gold: Sequence[Any] | NDArray[Any], labels: LabelSpace) -> ClassScores:
    """Returns the scores and labels of all rows; each word with a tag is a row, or each of several classes."""
    return KINDS[labels.kind].class_scores(outputs, np.asarray(gold))


def softmax(scores_NC: Floats, temperature: float = 1.0) -> Floats:
    """Returns the probabilities softmax(scores / temperature)."""
    scaled_NC = scores_NC / temperature
    powers_NC = np.exp(scaled_NC - scaled_NC.max(1, keepdims=True))
    probabilities_NC: Floats = powers_NC / powers_NC.sum(1, keepdims=True)
    return probabilities_NC


def fit_temperature(scores_NC: Floats, gold_N: Labels) -> float | None:
    """Returns the temperature T with the lowest log loss (Guo et al. 2017) of the N rows and of PRIOR_ROWS more.

        - sum_i log q_i(y_i) - PRIOR_ROWS / N * sum_i sum_c p_i(c) log q_i(c)
        q_i = softmax(z_i / T)          p_i = softmax(z_i)

    The further rows are labelled as the model believes; without them, T is too far from 1 for few rows. The sum is
    convex in b = 1 / T. Its derivative is that of sum_i (mean of z_i by q_i) - (z_i of its labels), whose root is found
    by Newton's method within a bracket. None if the best T is below LOWEST, or if any does as well.
    """
    if not np.isfinite(scores_NC).all():
        return None
    own_N, believed_N = scores_NC[np.arange(len(gold_N)), gold_N], (softmax(scores_NC) * scores_NC).sum(1)
    labelled = (own_N.sum() + PRIOR_ROWS * believed_N.mean()) / (len(gold_N) + PRIOR_ROWS)
    low, high, inverse = 1 / HIGHEST, 1 / LOWEST, 1.0
    if _slopes(scores_NC, labelled, high)[0] <= 0:
        return None
    if _slopes(scores_NC, labelled, low)[0] >= 0:
        return HIGHEST
    for _ in range(NEWTON_STEPS):
        slope, curvature = _slopes(scores_NC, labelled, inverse)
        low, high = (low, inverse) if slope > 0 else (inverse, high)
        step = inverse - slope / curvature if curvature > 0 else low
        if not low < step < high:
            step = (low * high) ** 0.5
        converged = abs(step - inverse) <= 1e-10 * inverse
        inverse = step
        if converged:
            break
    return float(1 / inverse)


def _slopes(scores_NC: Floats, labelled: float, inverse: float) -> tuple[float, float]:
    """Returns the first and the second derivative of the mean loss in the inverse temperature.

    `labelled` is the mean of the scores of the labels.
    """
    p_NC = softmax(scores_NC, 1 / inverse)
    mean_N = (p_NC * scores_NC).sum(1)
    variance_N = (p_NC * (scores_NC - mean_N[:, None]) ** 2).sum(1)
    return float(mean_N.mean() - labelled), float(variance_N.mean())


def cross_fitted(scores_NC: Floats, gold_N: Labels, name: str, example_N: Labels | None = None) -> Floats:
    """Returns the probabilities of each half of the examples with the temperature of the other half.

    The halves are random, by name. Measured on these probabilities, calibration is not flattered by the fit.
    """
    example_N = np.arange(len(gold_N)) if example_N is None else example_N
    examples = int(example_N[-1]) + 1
    order_E = seeds.generator(0, "calibrate", name).permutation(examples)
    place_N = np.argsort(order_E)[example_N]
    order_N = np.argsort(place_N, kind="stable")
    half = int((place_N < examples // 2).sum())
    halves = order_N[:half], order_N[half:]
    probabilities_NC = np.empty_like(scores_NC)
    for used, fitted in (halves, halves[::-1]):
        temperature = fit_temperature(scores_NC[fitted], gold_N[fitted])
        probabilities_NC[used] = softmax(scores_NC[used], temperature or 1.0)
    return probabilities_NC


# --- how good probabilities are ---------------------------------------------------------------------------------------
def quality(gold_N: Labels, probabilities_NC: Floats) -> Json:
    """Returns log loss and calibration error, as the metrics of these names compute them."""
    predictions = Predictions(gold_N, probabilities_NC.argmax(1), probabilities_NC)
    metrics = (chosen_metric(name, "classes", "calibration") for name in ("log_loss", "calibration_error"))
    return {metric.name: predictions.value(metric) for metric in metrics}


def reliability(gold_N: Labels, probabilities_NC: Floats) -> list[Json]:
    """Returns rows, mean confidence and accuracy of each of the equally wide bins of confidence that has rows."""
    bins_N, gaps_N = confidence_gaps(gold_N, probabilities_NC)
    right_N = probabilities_NC.argmax(1) == gold_N
    counts, right, gaps = (np.bincount(bins_N, weights, CALIBRATION_BINS) for weights in (None, right_N, gaps_N))
    return [
        {"rows": int(count), "confidence": (hits - gap) / count, "accuracy": hits / count}
        for count, hits, gap in zip(counts.tolist(), right.tolist(), gaps.tolist(), strict=True)
        if count
    ]


def coverage(confidence_N: Floats, right_N: NDArray[np.bool_], threshold: float | None = None) -> Json:
    """Returns the curve of (coverage, accuracy, threshold): rows with at least this confidence, and how many are right.

    `goals` has the largest coverage with an accuracy; `chosen` is the point of `threshold`.
    """
    order_N = np.argsort(-confidence_N, kind="stable")
    sorted_N = confidence_N[order_N]
    last = np.flatnonzero(np.diff(sorted_N, append=-1.0))  # rows of one confidence stay together
    accuracy = right_N[order_N].cumsum()[last] / (last + 1)
    points = np.stack([(last + 1) / len(order_N), accuracy, sorted_N[last]], 1)
    shown = np.unique(np.linspace(0, len(points) - 1, MAX_POINTS).round().astype(int))
    return {
        "curve": points[shown].tolist() if len(points) else [],
        "goals": [_goal(points, goal) for goal in GOALS],
        "chosen": None if threshold is None else _chosen(confidence_N, right_N, threshold),
    }


def _goal(points: Floats, goal: float) -> Json:
    enough = np.flatnonzero(points[:, 1] >= goal)
    if not len(enough):
        return {"accuracy": goal, "coverage": 0.0, "threshold": None}
    share, _, threshold = points[enough[-1]].tolist()
    return {"accuracy": goal, "coverage": share, "threshold": threshold}


def _chosen(confidence_N: Floats, right_N: NDArray[np.bool_], threshold: float) -> Json:
    kept_N = confidence_N >= threshold
    accuracy = float(right_N[kept_N].mean()) if kept_N.any() else None
    return {"threshold": threshold, "coverage": float(kept_N.sum() / max(len(kept_N), 1)), "accuracy": accuracy}


def sure_spans(rows: ClassScores, probabilities_NC: Floats, labels: LabelSpace) -> tuple[Floats, NDArray[np.bool_]]:
    """Returns, for tags of words, the probability of every predicted span, and whether it is a true one."""
    assert labels.scheme is not None
    confidence, right = list[float](), list[bool]()
    shares_N, tags_N, gold_N = probabilities_NC.max(1), rows.scores_NC.argmax(1), rows.gold_N
    for words in np.split(np.arange(len(gold_N)), np.flatnonzero(np.diff(rows.example_N)) + 1):
        tags, true = ([labels.classes[number] for number in numbers[words]] for numbers in (tags_N, gold_N))
        true_spans = set(find_spans(true, labels.scheme))
        for span, probability in span_probabilities(tags, shares_N[words].tolist(), labels.scheme):
            confidence.append(probability)
            right.append(span in true_spans)
    return np.array(confidence), np.array(right, bool)


# --- one task ---------------------------------------------------------------------------------------------------------
def calibrate(
    outputs: Tensor,
    gold: Sequence[Any] | NDArray[Any],
    labels: LabelSpace,
    name: str,
    threshold: float | None,
    fit: bool,
) -> Json:
    """Fits a task's temperature on its dev rows, and measures its probabilities before and after.

    Without `fit` the temperature is 1. What is measured `after` is cross-fitted, and so is the coverage, which for tags
    of words is that of the predicted spans. Of several classes per row, each class of a row counts as one, and there is
    no coverage.
    """
    rows = class_scores(outputs, gold, labels)
    scores_NC, gold_N, example_N = rows
    before_NC, temperature, problem = softmax(scores_NC), None, None
    if fit and len(np.unique(example_N)) < FEWEST_ROWS:
        problem = f"fewer than {FEWEST_ROWS} dev rows"
    elif fit:
        temperature = fit_temperature(scores_NC, gold_N)
        problem = None if temperature is not None else "the dev rows do not determine one"
    after_NC = before_NC if temperature is None else cross_fitted(scores_NC, gold_N, name, example_N)
    sure = after_NC.max(1), before_NC.argmax(1) == gold_N
    if KINDS[labels.kind].per_word:
        sure = sure_spans(rows, after_NC, labels)
    return {
        "temperature": temperature or 1.0,
        "problem": problem,
        "rows": len(gold_N),
        "bins": CALIBRATION_BINS,
        "before": {**quality(gold_N, before_NC), "reliability": reliability(gold_N, before_NC)},
        "after": None
        if temperature is None
        else {**quality(gold_N, after_NC), "reliability": reliability(gold_N, after_NC)},
        "coverage": coverage(*sure, threshold) if KINDS[labels.kind].has_confidence else None,
    }


def before_and_after(
    outputs: Tensor, gold: Sequence[Any] | NDArray[Any], labels: LabelSpace, temperature: float
) -> Mapping[str, Json]:
    """Measures the probabilities of rows that the temperature was not fitted on, without it and with it."""
    scores_NC, gold_N, _ = class_scores(outputs, gold, labels)
    return {
        "before": quality(gold_N, softmax(scores_NC)),
        "after": quality(gold_N, softmax(scores_NC, temperature)),
    }
