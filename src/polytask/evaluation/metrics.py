"""Metrics over whole splits, with intervals over examples. Knows arrays of labels, not models or files.

A metric is a record. Its function takes the true and the predicted labels, arrays [..., N] of class numbers, 0 / 1 or
scores, and works over any leading axes. Metrics of probabilities first turn labels and probabilities into two such
columns. Where a metric has no meaning (one class only, constant scores) it is 0.0, and an AUC is 0.5.
Plain text has no labels: in their place stand how much was asked of each text and how surprising that was.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polytask.evaluation import intervals
from polytask.evaluation.intervals import BATCH_NUMBERS, CONFIDENCE, RESAMPLES, Ends, Scale
from polytask.types import LabelKind, LabelSpace, MetricValue, TaskScore, UserError, unknown

__all__ = ["BATCH_NUMBERS", "CONFIDENCE", "METRICS", "RESAMPLES", "Metric", "check_metric", "margins", "metrics_for"]

Array = NDArray[Any]
Floats = NDArray[np.float64]

LARGEST_LOSS = 50.0
SMALLEST_PROBABILITY = float(np.finfo(np.float64).eps)
"""Log loss counts nothing as less likely, as in scikit-learn."""
CALIBRATION_BINS = 15
MOST_AUC_CLASSES = 20
"""With more classes, AUC is computed only where it is the task's metric: it sorts all rows once for each class."""


@dataclass(frozen=True)
class Metric:
    """One metric: what it is called, how it is computed, and which label kinds it suits."""

    name: str
    function: Callable[[Array, Array], Floats]
    """True labels [..., N] and predicted labels [..., N] to values [...]."""
    greater_is_better: bool
    kinds: tuple[LabelKind, ...]
    from_margins: Callable[[Array], Floats] | None = None
    """The same from margins [..., 3, C]; None: the metric needs the scores themselves."""
    order_only: bool = False
    """Only the order of the scores matters, so that whole-number codes can stand in for them."""
    columns: Callable[[Array, Array], tuple[Array, Array]] | None = None
    """From true labels [N] and probabilities [N, C] to what `function` takes; None: it takes labels."""
    pulls: Callable[[Array, Array], Floats] | None = None
    """The influence of each row [N] on the value, where there is a formula for it."""
    scale: Scale | None = None
    """On which the interval is symmetric; None: a confusion matrix or resampling gives the interval."""
    own: bool = False
    """A function that a recipe names: takes one split at a time, and nothing is known of it."""


# --- classes and yes / no: everything follows from three numbers for each class ---------------------------------------


def margins(gold: Array, predicted: Array, classes: int) -> NDArray[np.int64]:
    """[..., 3, C]: for each class, how many rows were predicted right, predicted as it, and truly it."""
    gold, predicted = gold.astype(np.int64), predicted.astype(np.int64)
    lead = gold.shape[:-1]
    offsets = np.arange(int(np.prod(lead))).reshape(*lead, 1) * classes

    def count(cells: Array) -> NDArray[np.int64]:
        return np.bincount(cells.ravel(), minlength=offsets.size * classes).reshape(*lead, classes)

    right = count((gold + offsets)[gold == predicted])
    return np.stack([right, count(predicted + offsets), count(gold + offsets)], axis=-2)


def _ratio(above: Array, below: Array) -> Floats:
    """above / below, and 0.0 where that has no meaning."""
    above, below = np.broadcast_arrays(np.asarray(above, np.float64), np.asarray(below, np.float64))
    defined = np.isfinite(above) & np.isfinite(below) & (below != 0)
    return np.divide(above, below, out=np.zeros(above.shape), where=defined)


def _parts(margins_3C: Array) -> tuple[Floats, Floats, Floats]:
    right, said, true = np.moveaxis(np.asarray(margins_3C, np.float64), -2, 0)
    return right, said, true


def per_class(margins_3C: Array) -> dict[str, Floats]:
    """Precision, recall, F1 and support [..., C] of every class."""
    right, said, true = _parts(margins_3C)
    f1 = _ratio(2 * right, said + true)
    return {"precision": _ratio(right, said), "recall": _ratio(right, true), "f1": f1, "support": true}


def _accuracy(margins_3C: Array) -> Floats:
    right, _, true = _parts(margins_3C)
    return _ratio(right.sum(-1), true.sum(-1))


def _f1_yes(margins_3C: Array) -> Floats:
    return per_class(margins_3C)["f1"][..., 1]


def _f1_macro(margins_3C: Array) -> Floats:
    """The plain mean over the classes that occur, as true or as predicted ones (as in scikit-learn)."""
    _, said, true = _parts(margins_3C)
    return _ratio(per_class(margins_3C)["f1"].sum(-1), ((said + true) > 0).sum(-1))


def _f1_weighted(margins_3C: Array) -> Floats:
    """The mean over classes, each counting by its true rows."""
    _, _, true = _parts(margins_3C)
    return _ratio((per_class(margins_3C)["f1"] * true).sum(-1), true.sum(-1))


def _matthews(margins_3C: Array) -> Floats:
    """Matthews correlation for any number of classes (Gorodkin 2004)."""
    right, said, true = _parts(margins_3C)
    rows = true.sum(-1)
    covariance = right.sum(-1) * rows - (said * true).sum(-1)
    return _ratio(covariance, np.sqrt((rows**2 - (said**2).sum(-1)) * (rows**2 - (true**2).sum(-1))))


def _over_margins(from_margins: Callable[[Array], Floats]) -> Callable[[Array, Array], Floats]:
    def function(gold: Array, predicted: Array) -> Floats:
        highest = max(np.max(gold, initial=1), np.max(predicted, initial=1))
        return from_margins(margins(gold, predicted, int(highest) + 1))

    return function


# --- scores -----------------------------------------------------------------------------------------------------------


def _pearson(gold: Array, predicted: Array) -> Floats:
    gold, predicted = np.asarray(gold, np.float64), np.asarray(predicted, np.float64)
    if not np.isfinite(predicted).all():  # a run that diverged: no correlation, and no warnings on the way
        predicted = np.where(np.isfinite(predicted).all(-1, keepdims=True), predicted, 0.0)
    mean_x, mean_y = gold.mean(-1, keepdims=True), predicted.mean(-1, keepdims=True)
    x, y = gold - mean_x, predicted - mean_y
    norm_x, norm_y = np.sqrt((x * x).sum(-1)), np.sqrt((y * y).sum(-1))
    # Constant scores keep a spread of rounding errors: the same bound as scipy.stats.pearsonr, which warns there.
    constant = (norm_x <= 1e-13 * np.abs(mean_x[..., 0])) | (norm_y <= 1e-13 * np.abs(mean_y[..., 0]))
    r = np.clip(_ratio((x * y).sum(-1), norm_x * norm_y), -1.0, 1.0)
    return np.where(constant, 0.0, r)


def _codes(scores: Array) -> NDArray[np.int64]:
    """Scores as whole numbers in the same order."""
    return np.unique(scores, return_inverse=True)[1].reshape(scores.shape).astype(np.int64)


def _ranks(scores: Array) -> Floats:
    """Ranks along the last axis, ties sharing their mean, by counting: ten times faster than sorting each resample."""
    codes = scores if np.issubdtype(scores.dtype, np.integer) else _codes(scores)
    codes = codes - codes.min(initial=0)
    width = int(codes.max(initial=0)) + 1
    flat = codes.reshape(-1, codes.shape[-1])
    cells = flat + np.arange(len(flat))[:, None] * width
    counts = np.bincount(cells.ravel(), minlength=len(flat) * width).reshape(len(flat), width)
    mean_ranks = counts.cumsum(-1) - (counts - 1) / 2
    ranks: Floats = mean_ranks.ravel()[cells].reshape(codes.shape)
    return ranks


def _spearman(gold: Array, predicted: Array) -> Floats:
    return _pearson(_ranks(gold), _ranks(predicted))


def _mae(gold: Array, predicted: Array) -> Floats:
    return np.asarray(np.abs(np.asarray(predicted, np.float64) - gold).mean(-1))


def _rmse(gold: Array, predicted: Array) -> Floats:
    return np.asarray(np.sqrt(((np.asarray(predicted, np.float64) - gold) ** 2).mean(-1)))


def _r2(gold: Array, predicted: Array) -> Floats:
    """1 - squared error / variance of the true scores; 0.0 where these are all the same."""
    gold = np.asarray(gold, np.float64)
    spread = ((gold - gold.mean(-1, keepdims=True)) ** 2).mean(-1)
    errors = ((np.asarray(predicted, np.float64) - gold) ** 2).mean(-1)
    return np.where(spread > 0, 1 - _ratio(errors, spread), 0.0)


# --- probabilities of classes -----------------------------------------------------------------------------------------


def _surprises(gold: Array, probabilities_NC: Array) -> tuple[Array, Array]:
    """-log p of each row's true class."""
    own = probabilities_NC[np.arange(len(gold)), gold]
    return gold, -np.log(np.clip(own, SMALLEST_PROBABILITY, 1 - SMALLEST_PROBABILITY))


def _mean_of_second(_: Array, values: Array) -> Floats:
    return np.asarray(values.mean(-1), np.float64)


def _confidence_gaps(gold: Array, probabilities_NC: Array) -> tuple[Array, Array]:
    """Each row's bin of confidence, and right (1 or 0) minus confidence: the probability of the predicted class."""
    confidence, predicted = probabilities_NC.max(1), probabilities_NC.argmax(1)
    bins = np.clip(np.ceil(confidence * CALIBRATION_BINS).astype(np.int64) - 1, 0, CALIBRATION_BINS - 1)
    return bins, (predicted == gold) - confidence


def _calibration_error(bins: Array, gaps: Array) -> Floats:
    """Expected calibration error: mean over rows of |accuracy - mean confidence| of the row's bin (Guo et al. 2017)."""
    sums = np.bincount(bins, gaps, minlength=CALIBRATION_BINS)
    return np.asarray(np.abs(sums).sum() / len(bins), np.float64)


def _against_rest(gold: Array, probabilities_NC: Array) -> tuple[Array, Array]:
    """For every class (only yes, of yes and no) whether a row is of it, and its probability [N, C]."""
    first = 1 if probabilities_NC.shape[1] == 2 else 0
    return gold[:, None] == np.arange(first, probabilities_NC.shape[1]), probabilities_NC[:, first:]


def _placements(is_NC: Array, scores_NC: Array) -> tuple[Floats, Floats]:
    """[C'] AUCs of the classes that have rows and are not all rows, and [N, C'] the influence of every row on them."""
    aucs, pulls = [], []
    for inside, scores in zip(is_NC.T, scores_NC.T, strict=True):
        num_in, num_out = int(inside.sum()), int((~inside).sum())
        if num_in and num_out:
            own, rest = np.sort(scores[inside]), np.sort(scores[~inside])
            above = np.empty(len(scores))
            for rows, others, sign in ((inside, rest, 1), (~inside, own, -1)):
                sides = [np.searchsorted(others, scores[rows], side) for side in ("left", "right")]
                share = (sides[0] + sides[1]) / 2 / len(others)
                above[rows] = share if sign > 0 else 1 - share
            auc = float(above[inside].mean())
            counts = np.where(inside, num_in, num_out)
            aucs.append(auc)
            pulls.append((above - auc) * len(scores) / counts * np.sqrt(counts / np.maximum(counts - 1, 1)))
    return np.array(aucs), np.stack(pulls, axis=1) if pulls else np.zeros((len(scores_NC), 0))


def _auc(is_NC: Array, scores_NC: Array) -> Floats:
    """How often a row of the class gets a higher probability than a row of the rest; the mean over classes."""
    aucs, _ = _placements(is_NC, scores_NC)
    return np.asarray(aucs.mean() if len(aucs) else 0.5, np.float64)


def _auc_pulls(is_NC: Array, scores_NC: Array) -> Floats:
    """DeLong et al. 1988."""
    _, pulls_NC = _placements(is_NC, scores_NC)
    return pulls_NC.mean(1) if pulls_NC.shape[1] else np.zeros(len(scores_NC))


# --- plain text -------------------------------------------------------------------------------------------------------


def _perplexity(asked: Array, surprise: Array) -> Floats:
    """exp of the mean of -log p over all that was asked; a run that diverged has a huge one, and no warnings."""
    mean = np.asarray(surprise, np.float64).sum(-1) / np.maximum(asked.sum(-1), 1)
    return np.exp(np.where(np.isfinite(mean), np.minimum(mean, LARGEST_LOSS), LARGEST_LOSS))


# --- the table --------------------------------------------------------------------------------------------------------

_CLASSES: tuple[LabelKind, ...] = ("classes", "yes_no")
METRICS: tuple[Metric, ...] = (
    Metric("accuracy", _over_margins(_accuracy), True, ("classes", "yes_no"), _accuracy),
    Metric("f1", _over_margins(_f1_yes), True, ("yes_no",), _f1_yes),
    Metric("f1", _over_margins(_f1_macro), True, ("classes",), _f1_macro),
    Metric("matthews", _over_margins(_matthews), True, ("classes", "yes_no"), _matthews),
    Metric("pearson", _pearson, True, ("score",), scale=intervals.FISHER_Z),
    Metric("spearman", _spearman, True, ("score",), order_only=True, scale=intervals.FISHER_Z),
    Metric("perplexity", _perplexity, False, ("text",), scale=intervals.LOG),
    Metric("f1_weighted", _over_margins(_f1_weighted), True, _CLASSES, _f1_weighted),
    Metric("auc", _auc, True, _CLASSES, columns=_against_rest, pulls=_auc_pulls, scale=intervals.LOG_ODDS),
    Metric("log_loss", _mean_of_second, False, _CLASSES, columns=_surprises, scale=intervals.LOG),
    Metric("calibration_error", _calibration_error, False, _CLASSES, columns=_confidence_gaps),
    Metric("mae", _mae, False, ("score",), scale=intervals.LOG),
    Metric("rmse", _rmse, False, ("score",), scale=intervals.LOG),
    Metric("r2", _r2, True, ("score",), scale=intervals.LOG_BELOW_ONE),
)


KNOWN_METRICS = frozenset(metric.name for metric in METRICS)


def metrics_for(kind: LabelKind) -> tuple[Metric, ...]:
    """The metrics that studies compare runs by, for a kind of label; the first is used when a recipe names none."""
    return tuple(metric for metric in all_metrics_for(kind) if metric.columns is None)


def all_metrics_for(kind: LabelKind) -> tuple[Metric, ...]:
    """Every metric that suits a kind of label."""
    return tuple(metric for metric in METRICS if kind in metric.kinds)


def primary_metric(kind: LabelKind) -> str:
    return metrics_for(kind)[0].name


def check_metric(metric: str | None, kind: LabelKind, where: str) -> str:
    """The name of a metric that studies can compare runs by, or the kind's primary one where none is given."""
    names = [entry.name for entry in metrics_for(kind)]
    if metric is not None and metric not in names:
        others = [entry.name for entry in all_metrics_for(kind)]
        why = "needs probabilities, which studies do not compare" if metric in others else f"is not for kind {kind}"
        raise UserError(f"{where}: {metric!r} {why}; use one of: {', '.join(names)}")
    return metric or names[0]


def chosen_metric(metric: str | None, kind: LabelKind, where: str, own: tuple[Metric, ...] = ()) -> Metric:
    """The metric that a recipe chooses among those of the kind and its own, or the kind's primary one."""
    metrics = {entry.name: entry for entry in (*all_metrics_for(kind), *own)}
    if metric is not None and metric not in metrics:
        raise UserError(unknown(where, metric, metrics, f"metric for labels of kind {kind}"))
    return metrics[metric or primary_metric(kind)]


def score(
    gold: Array,
    predicted: Array,
    labels: LabelSpace,
    loss: float,
    primary: str | None = None,
    seed: int = 0,
    probabilities: Array | None = None,
    own: tuple[Metric, ...] = (),
) -> TaskScore:
    """Every metric of the label kind over one split, each with its 95 % interval over examples.

    Scores are in the task's own range. Without probabilities [N, C] the metrics that need them are left out.
    """
    chosen = chosen_metric(primary, labels.kind, "metric", own)
    gold, predicted = np.asarray(gold), np.asarray(predicted)
    if gold.shape != predicted.shape or gold.ndim != 1:
        raise ValueError(f"gold {gold.shape} and predicted {predicted.shape} must be two lists of the same length")
    if len(gold) == 0:
        raise UserError("there is no labelled row to score")
    if labels.kind in ("classes", "yes_no"):
        gold, predicted = gold.astype(np.int64), predicted.astype(np.int64)
    split = _Split(gold, predicted, None if probabilities is None else np.nan_to_num(probabilities), labels, seed)
    metrics = [metric for metric in (*all_metrics_for(labels.kind), *own) if split.suits(metric, chosen)]
    values = {metric.name: float(metric.function(*split.columns(metric))) for metric in metrics}
    ends = split.matrix_ends(metrics)
    found = {}
    for metric in metrics:
        value = values[metric.name]
        low, high = ends[metric.name] if metric.name in ends else split.ends(metric, value)
        found[metric.name] = MetricValue(value, min(low, value), max(high, value), metric.greater_is_better)
    return TaskScore(loss, found, chosen.name, len(gold), chosen.greater_is_better)


@dataclass(frozen=True)
class _Split:
    """What is scored: labels, and what metrics and intervals take."""

    gold: Array
    predicted: Array
    probabilities: Array | None
    labels: LabelSpace
    seed: int

    def suits(self, metric: Metric, chosen: Metric) -> bool:
        if metric.columns is not None and self.probabilities is None:
            return False
        return metric.name != "auc" or metric is chosen or len(self.labels.classes) <= MOST_AUC_CLASSES

    def columns(self, metric: Metric) -> tuple[Array, Array]:
        if metric.columns is not None:
            assert self.probabilities is not None
            return metric.columns(self.gold, self.probabilities)
        gold, predicted = self.gold, self.predicted
        if self.labels.kind == "score" and not np.isfinite(predicted).all():  # a run that diverged
            if metric.scale is intervals.FISHER_Z:
                predicted = np.zeros(len(predicted))  # one such score spoils any correlation
            else:
                low, high = self.labels.low, self.labels.high
                predicted = np.where(np.isfinite(predicted), predicted, np.where(gold * 2 > low + high, low, high))
        return (_codes(gold), _codes(predicted)) if metric.order_only else (gold, predicted)

    def matrix_ends(self, metrics: list[Metric]) -> dict[str, Ends]:
        """The intervals of all metrics that follow from the confusion matrix."""
        functions = {metric.name: metric.from_margins for metric in metrics if metric.from_margins is not None}
        if not functions:
            return {}
        classes = max(2, len(self.labels.classes))
        exact = {"accuracy": intervals.of_share(int((self.gold == self.predicted).sum()), len(self.gold))}
        del functions["accuracy"]
        return exact | intervals.of_matrix(functions, self.gold, self.predicted, classes, self.seed)

    def ends(self, metric: Metric, value: float) -> Ends:
        columns = self.columns(metric)
        if metric.own:
            worst, best = self.extremes()
            return intervals.by_bootstrap(_forgiving(metric), columns, worst, best, self.seed)
        if metric.pulls is not None:
            assert metric.scale is not None
            pulls_N = metric.pulls(*columns)
            if value in (0.0, 1.0):
                return _separated(value, columns[0])
            return intervals.by_pulls(value, pulls_N, metric.scale)
        if metric.scale is None:
            bins, gaps = columns
            counts, sums = (np.bincount(bins, weights, CALIBRATION_BINS) for weights in (None, gaps))
            right = np.bincount(bins, self.gold == self.probabilities.argmax(1), CALIBRATION_BINS)  # type: ignore[union-attr]
            confidence = (right - sums) / np.maximum(counts, 1)
            return intervals.of_calibration(value, counts, right, confidence, self.seed)
        other = None
        if metric.columns is None and self.labels.kind == "score":
            other = columns[0], np.roll(columns[1], len(self.gold) // 2)  # rows that have nothing to do with each other
        return intervals.by_jackknife(metric.function, columns, metric.scale, other, self.seed)

    def extremes(self) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
        """Rows that could not be more wrong, and rows that are right."""
        if self.labels.kind == "score":
            ends = np.array([self.gold.min(), self.gold.max()], np.float64)
            if ends[0] == ends[1]:
                ends = np.array([self.labels.low, self.labels.high])
            return (ends, ends[::-1]), (ends, ends)
        present = np.unique(np.concatenate([self.gold, self.predicted]))
        if len(present) == 1:
            present = np.array([present[0], (present[0] + 1) % max(2, len(self.labels.classes))])
        return (present, np.roll(present, 1)), (present, present)


def _forgiving(metric: Metric) -> Callable[[Array, Array], Any]:
    """The function of a metric that may have no value on some resamples, as where they hold one class only."""

    def forgiving(gold: Array, predicted: Array) -> Any:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return metric.function(gold, predicted)
        except UserError:
            return np.nan

    return forgiving


def _separated(auc: float, is_NC: Array) -> Ends:
    """The interval of an AUC of 0 or 1: one row more of each class and of its rest, ranked on the wrong side."""
    counts = [(int(column.sum()), int((~column).sum())) for column in is_NC.T]
    pairs = [(own, rest) for own, rest in counts if own and rest]
    rng = np.random.default_rng(0)
    drawn = np.mean([(1 - rng.beta(0.5, a, RESAMPLES)) * (1 - rng.beta(0.5, b, RESAMPLES)) for a, b in pairs], axis=0)
    reach = float(np.quantile(drawn, intervals.TAIL))
    return (reach, 1.0) if auc > 0.5 else (0.0, 1 - reach)
