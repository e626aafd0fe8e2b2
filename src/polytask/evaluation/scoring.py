"""Scores the predictions on a whole split: every metric that suits the labels, with a 95 % interval over examples.

Knows arrays of labels, not models or files. Where a run diverged, its NaN predictions count as the worst ones.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from polytask.evaluation import intervals, label_sets, spans
from polytask.evaluation.intervals import RESAMPLES, Ends
from polytask.evaluation.metrics import (
    CALIBRATION_BINS,
    DIMENSIONS,
    Array,
    Metric,
    all_metrics_for,
    chosen_metric,
    integer_codes,
)
from polytask.kinds.base import Kind
from polytask.kinds.table import KINDS
from polytask.types import LabelSpace, MetricValue, TaskScore, UserError

MOST_AUC_CLASSES = 20
"""With more classes, AUC and average precision are computed only where they are the task's metric: they sort all rows
once for each class."""


@dataclass(frozen=True)
class Predictions:
    """The true and the predicted labels of a split, in the order of its rows."""

    gold: Array
    """[N]: class numbers, 0 / 1, or scores in the task's own range; [N, C] of 0 / 1 for several classes per row; counts
    of spans and words [N, 3, C + 2] for tags of words (see spans.py); ones for pairs that belong together."""
    predicted: Array
    """The same of the predictions; ranks for pairs that belong together."""
    probabilities: Array | None = None
    """[N, C]; None for scores and plain text."""

    def columns(self, metric: Metric) -> tuple[Array, Array]:
        """Returns the two arrays that the metric's function takes."""
        if metric.columns is None:
            return self.gold, self.predicted
        assert self.probabilities is not None
        return metric.columns(self.gold, self.probabilities)

    def value(self, metric: Metric) -> float:
        return float(metric.function(*self.columns(metric)))


def score(
    predictions: Predictions,
    labels: LabelSpace,
    loss: float,
    primary: str | None = None,
    own: tuple[Metric, ...] = (),
    seed: int = 0,
) -> TaskScore:
    """Computes every metric of the label kind, and the user's `own` ones, each with its 95 % interval over examples.

    Without probabilities, the metrics that need them are left out. `seed` is that of the intervals' random draws.
    """
    chosen = chosen_metric(primary, labels.kind, "metric", own, labels.scheme)
    split = _Split(_checked(predictions, labels), labels, seed)
    metrics = [metric for metric in (*all_metrics_for(labels.kind), *own) if split.suits(metric, chosen)]
    values = {metric.name: float(metric.function(*split.columns(metric))) for metric in metrics}
    ends = split.matrix_ends(metrics)
    scores = {}
    for metric in metrics:
        value = values[metric.name]
        low, high = ends[metric.name] if metric.name in ends else split.ends(metric, value)
        scores[metric.name] = MetricValue(value, min(low, value), max(high, value), metric.greater_is_better)
    return TaskScore(loss, scores, chosen.name, len(split.data.gold), chosen.greater_is_better)


def _checked(predictions: Predictions, labels: LabelSpace) -> Predictions:
    """Returns the predictions with class numbers as integers and no NaN among the probabilities."""
    gold, predicted = np.asarray(predictions.gold), np.asarray(predictions.predicted)
    if gold.shape != predicted.shape or gold.ndim != DIMENSIONS.get(labels.kind, 1):
        raise ValueError(f"gold {gold.shape} and predicted {predicted.shape} must be two lists of the same length")
    if len(gold) == 0:
        raise UserError("there is no labelled row to score")
    if labels.classes:
        gold, predicted = gold.astype(np.int64), predicted.astype(np.int64)
    probabilities = None if predictions.probabilities is None else np.nan_to_num(predictions.probabilities)
    return Predictions(gold, predicted, probabilities)


@dataclass(frozen=True)
class _Split:
    """The predictions on a split, prepared for metrics and their intervals."""

    data: Predictions
    labels: LabelSpace
    seed: int

    @property
    def _kind(self) -> Kind:
        return KINDS[self.labels.kind]

    def suits(self, metric: Metric, chosen: Metric) -> bool:
        if metric.columns is not None and self.data.probabilities is None:
            return False
        sorts = metric.name == "auc" or metric.name.startswith("average_precision")
        return not sorts or metric is chosen or len(self.labels.classes) <= MOST_AUC_CLASSES

    def columns(self, metric: Metric) -> tuple[Array, Array]:
        """Returns what the metric's function takes; predictions of a run that diverged become the worst ones."""
        if metric.columns is not None:
            return self.data.columns(metric)
        gold, predicted = self.data.gold, self.data.predicted
        if self.labels.kind == "score" and not np.isfinite(predicted).all():
            if metric.scale is intervals.FISHER_Z:
                predicted = np.zeros(len(predicted))  # one NaN makes the whole correlation undefined
            else:
                ends = self.labels.low, self.labels.high
                low, high = ends if self.labels.bounded else (gold.min(), gold.max())
                predicted = np.where(np.isfinite(predicted), predicted, np.where(gold * 2 > low + high, low, high))
        return (integer_codes(gold), integer_codes(predicted)) if metric.order_only else (gold, predicted)

    def matrix_ends(self, metrics: list[Metric]) -> dict[str, Ends]:
        """Returns the intervals of all metrics that follow from the confusion matrix."""
        functions = {metric.name: metric.from_margins for metric in metrics if metric.from_margins is not None}
        if not functions:
            return {}
        gold, predicted = self.data.gold, self.data.predicted
        if self.labels.kind == "tokens":
            return spans.tally_ends(functions, gold, predicted, self.seed)
        if self.labels.kind == "multilabel":
            return intervals.of_label_sets(functions, label_sets.rows_of_margins(gold, predicted), self.seed)
        exact = {"accuracy": intervals.of_share(int((gold == predicted).sum()), len(gold))}
        del functions["accuracy"]
        return exact | intervals.of_matrix(functions, gold, predicted, max(2, len(self.labels.classes)), self.seed)

    def ends(self, metric: Metric, value: float) -> Ends:
        """Returns the interval of a metric that does not follow from the confusion matrix."""
        columns = self.columns(metric)
        if metric.own:
            worst, best = self._kind.extremes(self.data.gold, self.data.predicted, self.labels)
            return intervals.by_bootstrap(_nan_if_undefined(metric), columns, worst, best, self.seed)
        if metric.row_values is not None:
            return self._row_ends(metric, metric.row_values(*columns))
        if metric.influence is not None:
            assert metric.scale is not None
            if value in (0.0, 1.0):
                return _separated(value, columns[0])
            return intervals.by_influence(value, metric.influence(*columns), metric.scale)
        if metric.scale is None:
            return self._calibration_ends(value, *columns)
        other = None
        if self.labels.kind == "multilabel":
            other = columns[0], columns[1].max() - columns[1]  # the classes in the opposite order
        elif metric.columns is None and self.labels.kind == "score":
            other = columns[0], np.roll(columns[1], len(columns[0]) // 2)  # unrelated true and predicted scores
        elif metric.name == "mrr" and self.data.probabilities is not None:
            other = columns[0], np.full_like(columns[1], 1 / self.data.probabilities.shape[1])  # the last rank
        return intervals.by_jackknife(metric.function, columns, metric.scale, other, self.seed)

    def _row_ends(self, metric: Metric, values_N: Array) -> Ends:
        """Returns the interval of a mean over rows of values from 0 to 1."""
        if np.isin(values_N, (0.0, 1.0)).all():
            return intervals.of_share(int(values_N.sum()), len(values_N))
        columns = self.data.gold, self.data.predicted
        worst, _ = self._kind.extremes(*columns, self.labels)
        return intervals.by_jackknife(metric.function, columns, intervals.LOG_ODDS, worst, self.seed)

    def _calibration_ends(self, value: float, bins: Array, gaps: Array) -> Ends:
        assert self.data.probabilities is not None
        counts, sums = (np.bincount(bins, weights, CALIBRATION_BINS) for weights in (None, gaps))
        right = np.bincount(bins, self.data.gold == self.data.probabilities.argmax(1), CALIBRATION_BINS)
        confidence = (right - sums) / np.maximum(counts, 1)
        return intervals.of_calibration(value, counts, right, confidence, self.seed)


def _nan_if_undefined(metric: Metric) -> Callable[[Array, Array], Any]:
    """Wraps a function of the user's that may be undefined on some resamples, such as those of one class only."""

    def function(gold: Array, predicted: Array) -> Any:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return metric.function(gold, predicted)
        except UserError:
            return np.nan

    return function


def _separated(auc: float, is_NC: Array) -> Ends:
    """Returns the interval of an AUC of 0 or 1, with one more row of each class and of its rest on the wrong side."""
    counts = [(int(column.sum()), int((~column).sum())) for column in is_NC.T]
    pairs = [(own, rest) for own, rest in counts if own and rest]
    rng = np.random.default_rng(0)
    drawn = np.mean([(1 - rng.beta(0.5, a, RESAMPLES)) * (1 - rng.beta(0.5, b, RESAMPLES)) for a, b in pairs], axis=0)
    reach = float(np.quantile(drawn, intervals.TAIL))
    return (reach, 1.0) if auc > 0.5 else (0.0, 1 - reach)
