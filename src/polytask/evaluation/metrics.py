"""The table of metrics, and the functions that compute them. Knows arrays of labels, not models or files.

A metric is a record. Its function takes the true and the predicted labels, arrays [..., N] of class numbers, 0 / 1 or
scores, and works over any leading axes. Metrics of probabilities first turn labels and probabilities into two such
arrays. A metric that is undefined (one class only, constant scores) is 0.0, and an undefined AUC is 0.5.
Of several classes per row the arrays are [..., N, C] of 0 and 1: see label_sets.py. Of tags of words they are counts
[..., N, 3, C + 2], whose sum is each row's part of the margins: see spans.py.
Of pairs that belong together (kind match) the second array is the rank of each row's first right candidate, from 1 on.
Plain text has no labels: the two arrays are then the number of masked tokens of each text and their summed -log p.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polytask.evaluation import intervals, label_sets, spans
from polytask.evaluation.intervals import Scale
from polytask.methods import form_of
from polytask.types import LabelKind, TagScheme, UserError, unknown

Array = NDArray[Any]
Floats = NDArray[np.float64]
Columns = Callable[[Array, Array], tuple[Array, Array]]

LARGEST_LOSS = 50.0
SMALLEST_PROBABILITY = float(np.finfo(np.float64).eps)
"""Log loss clips probabilities to at least this, as in scikit-learn."""
CALIBRATION_BINS = 15


@dataclass(frozen=True)
class Metric:
    """One metric: its name, how it is computed, and which label kinds it suits."""

    name: str
    function: Callable[[Array, Array], Floats]
    """True labels [..., N] and predicted labels [..., N] to values [...]."""
    greater_is_better: bool
    kinds: tuple[LabelKind, ...]
    from_margins: Callable[[Array], Floats] | None = None
    """Computes the metric from margins [..., 3, C]; None: it cannot be computed from them."""
    order_only: bool = False
    """Only the order of the scores matters, so that integer codes can replace them."""
    columns: Columns | None = None
    """Turns true labels [N] and probabilities [N, C] into what `function` takes; None: it takes labels."""
    influence: Callable[[Array, Array], Floats] | None = None
    """Computes the influence of each row [N] on the value, if there is a formula for it."""
    scale: Scale | None = None
    """The scale on which the interval is symmetric; None: the interval comes from a confusion matrix or resampling."""
    row_values: Callable[[Array, Array], Floats] | None = None
    """Computes the values of the rows [..., N], from 0 to 1, if the metric is their mean."""
    own: bool = False
    """Whether it is a user's function that the recipe names. Such a function takes one split at a time."""


# --- classes and yes / no: everything follows from three numbers for each class ---------------------------------------


def margins(gold: Array, predicted: Array, classes: int) -> NDArray[np.int64]:
    """Counts, for each class, the rows predicted right, predicted as this class, and truly of it: [..., 3, C]."""
    gold, predicted = gold.astype(np.int64), predicted.astype(np.int64)
    lead = gold.shape[:-1]
    offsets = np.arange(int(np.prod(lead))).reshape(*lead, 1) * classes

    def count(cells: Array) -> NDArray[np.int64]:
        return np.bincount(cells.ravel(), minlength=offsets.size * classes).reshape(*lead, classes)

    right = count((gold + offsets)[gold == predicted])
    return np.stack([right, count(predicted + offsets), count(gold + offsets)], axis=-2)


def _ratio(above: Array, below: Array) -> Floats:
    """Returns above / below, and 0.0 where that is undefined."""
    above, below = np.broadcast_arrays(np.asarray(above, np.float64), np.asarray(below, np.float64))
    defined = np.isfinite(above) & np.isfinite(below) & (below != 0)
    return np.divide(above, below, out=np.zeros(above.shape), where=defined)


def _parts(margins_3C: Array) -> tuple[Floats, Floats, Floats]:
    right, predicted, true = np.moveaxis(np.asarray(margins_3C, np.float64), -2, 0)
    return right, predicted, true


def per_class(margins_3C: Array) -> dict[str, Floats]:
    """Returns precision, recall, F1 and support [..., C] of every class."""
    right, predicted, true = _parts(margins_3C)
    f1 = _ratio(2 * right, predicted + true)
    return {"precision": _ratio(right, predicted), "recall": _ratio(right, true), "f1": f1, "support": true}


def _accuracy(margins_3C: Array) -> Floats:
    right, _, true = _parts(margins_3C)
    return _ratio(right.sum(-1), true.sum(-1))


def _f1_yes(margins_3C: Array) -> Floats:
    return per_class(margins_3C)["f1"][..., 1]


def _f1_macro(margins_3C: Array) -> Floats:
    """Returns the plain mean over the classes that occur, as true or as predicted ones (as in scikit-learn)."""
    _, predicted, true = _parts(margins_3C)
    return _ratio(per_class(margins_3C)["f1"].sum(-1), ((predicted + true) > 0).sum(-1))


def _f1_weighted(margins_3C: Array) -> Floats:
    """Returns the mean over classes, weighted by the number of their true rows."""
    _, _, true = _parts(margins_3C)
    return _ratio((per_class(margins_3C)["f1"] * true).sum(-1), true.sum(-1))


def _matthews(margins_3C: Array) -> Floats:
    """Returns the Matthews correlation for any number of classes (Gorodkin 2004)."""
    right, predicted, true = _parts(margins_3C)
    rows = true.sum(-1)
    covariance = right.sum(-1) * rows - (predicted * true).sum(-1)
    return _ratio(covariance, np.sqrt((rows**2 - (predicted**2).sum(-1)) * (rows**2 - (true**2).sum(-1))))


def _over_margins(from_margins: Callable[[Array], Floats]) -> Callable[[Array, Array], Floats]:
    def function(gold: Array, predicted: Array) -> Floats:
        highest = max(np.max(gold, initial=1), np.max(predicted, initial=1))
        return from_margins(margins(gold, predicted, int(highest) + 1))

    return function


# --- scores -----------------------------------------------------------------------------------------------------------


def _pearson(gold: Array, predicted: Array) -> Floats:
    gold, predicted = np.asarray(gold, np.float64), np.asarray(predicted, np.float64)
    if not np.isfinite(predicted).all():  # a run that diverged has a correlation of 0, and NumPy must not warn
        predicted = np.where(np.isfinite(predicted).all(-1, keepdims=True), predicted, 0.0)
    mean_x, mean_y = gold.mean(-1, keepdims=True), predicted.mean(-1, keepdims=True)
    x, y = gold - mean_x, predicted - mean_y
    norm_x, norm_y = np.sqrt((x * x).sum(-1)), np.sqrt((y * y).sum(-1))
    # Constant scores still vary by rounding errors. scipy.stats.pearsonr has the same bound, and warns there.
    constant = (norm_x <= 1e-13 * np.abs(mean_x[..., 0])) | (norm_y <= 1e-13 * np.abs(mean_y[..., 0]))
    r = np.clip(_ratio((x * y).sum(-1), norm_x * norm_y), -1.0, 1.0)
    return np.where(constant, 0.0, r)


def integer_codes(scores: Array) -> NDArray[np.int64]:
    """Replaces scores by integers in the same order."""
    return np.unique(scores, return_inverse=True)[1].reshape(scores.shape).astype(np.int64)


def ranks(scores: Array) -> Floats:
    """Ranks along the last axis, with mean ranks for ties. Counting is ten times faster than sorting each resample."""
    codes = scores if np.issubdtype(scores.dtype, np.integer) else integer_codes(scores)
    codes = codes - codes.min(initial=0)
    width = int(codes.max(initial=0)) + 1
    flat = codes.reshape(-1, codes.shape[-1])
    cells = flat + np.arange(len(flat))[:, None] * width
    counts = np.bincount(cells.ravel(), minlength=len(flat) * width).reshape(len(flat), width)
    mean_ranks = counts.cumsum(-1) - (counts - 1) / 2
    found: Floats = mean_ranks.ravel()[cells].reshape(codes.shape)
    return found


def _spearman(gold: Array, predicted: Array) -> Floats:
    return _pearson(ranks(gold), ranks(predicted))


def _mae(gold: Array, predicted: Array) -> Floats:
    return np.asarray(np.abs(np.asarray(predicted, np.float64) - gold).mean(-1))


def _rmse(gold: Array, predicted: Array) -> Floats:
    return np.asarray(np.sqrt(((np.asarray(predicted, np.float64) - gold) ** 2).mean(-1)))


def _r2(gold: Array, predicted: Array) -> Floats:
    """Returns 1 - squared error / variance of the true scores; 0.0 where these are all the same."""
    gold = np.asarray(gold, np.float64)
    spread = ((gold - gold.mean(-1, keepdims=True)) ** 2).mean(-1)
    errors = ((np.asarray(predicted, np.float64) - gold) ** 2).mean(-1)
    return np.where(spread > 0, 1 - _ratio(errors, spread), 0.0)


# --- probabilities of classes -----------------------------------------------------------------------------------------


def _log_losses(gold: Array, probabilities_NC: Array) -> tuple[Array, Array]:
    """Returns -log p of each row's true class as the second array."""
    own = probabilities_NC[np.arange(len(gold)), gold]
    return gold, -np.log(np.clip(own, SMALLEST_PROBABILITY, 1 - SMALLEST_PROBABILITY))


def _mean_of_second(_: Array, values: Array) -> Floats:
    return np.asarray(values.mean(-1), np.float64)


def confidence_gaps(gold: Array, probabilities_NC: Array) -> tuple[Array, Array]:
    """Returns each row's confidence bin, and right (1 or 0) minus confidence (the predicted class's probability)."""
    confidence, predicted = probabilities_NC.max(1), probabilities_NC.argmax(1)
    bins = np.clip(np.ceil(confidence * CALIBRATION_BINS).astype(np.int64) - 1, 0, CALIBRATION_BINS - 1)
    return bins, (predicted == gold) - confidence


def _calibration_error(bins: Array, gaps: Array) -> Floats:
    """Returns the mean over rows of |accuracy - mean confidence| of the row's bin (ECE, Guo et al. 2017)."""
    sums = np.bincount(bins, gaps, minlength=CALIBRATION_BINS)
    return np.asarray(np.abs(sums).sum() / len(bins), np.float64)


def _against_rest(gold: Array, probabilities_NC: Array) -> tuple[Array, Array]:
    """Returns, for every class (of yes and no only yes), whether a row is of it, and its probability: two [N, C]."""
    first = 1 if probabilities_NC.shape[1] == 2 else 0
    return gold[:, None] == np.arange(first, probabilities_NC.shape[1]), probabilities_NC[:, first:]


def _placements(is_NC: Array, scores_NC: Array) -> tuple[Floats, Floats]:
    """Returns the AUC [C'] of each class that has some but not all rows, and every row's influence on it [N, C']."""
    aucs, influences = [], []
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
            influences.append((above - auc) * len(scores) / counts * np.sqrt(counts / np.maximum(counts - 1, 1)))
    return np.array(aucs), np.stack(influences, axis=1) if influences else np.zeros((len(scores_NC), 0))


def _auc(is_NC: Array, scores_NC: Array) -> Floats:
    """Returns how often a row of the class gets a higher probability than a row of the rest; the mean over classes."""
    aucs, _ = _placements(is_NC, scores_NC)
    return np.asarray(aucs.mean() if len(aucs) else 0.5, np.float64)


def _auc_influence(is_NC: Array, scores_NC: Array) -> Floats:
    """Returns every row's influence on the AUC (DeLong et al. 1988)."""
    _, influence_NC = _placements(is_NC, scores_NC)
    return influence_NC.mean(1) if influence_NC.shape[1] else np.zeros(len(scores_NC))


# --- plain text -------------------------------------------------------------------------------------------------------


def _perplexity(num_masked: Array, log_losses: Array) -> Floats:
    """Returns exp of the mean -log p over all masked tokens; that of a run that diverged is huge but finite."""
    mean = np.asarray(log_losses, np.float64).sum(-1) / np.maximum(num_masked.sum(-1), 1)
    return np.exp(np.where(np.isfinite(mean), np.minimum(mean, LARGEST_LOSS), LARGEST_LOSS))


# --- several classes per row ------------------------------------------------------------------------------------------


def _over_sets(from_margins: Callable[[Array], Floats]) -> Callable[[Array, Array], Floats]:
    return lambda gold, predicted: from_margins(label_sets.margins_of_sets(gold, predicted))


def _mean_of_rows(row_values: Callable[[Array, Array], Floats]) -> Callable[[Array, Array], Floats]:
    return lambda gold, predicted: np.asarray(row_values(gold, predicted).mean(-1))


# --- options ----------------------------------------------------------------------------------------------------------


def _is_right(gold: Array, predicted: Array) -> Floats:
    return np.asarray(gold == predicted, np.float64)


def _reciprocal_ranks(gold: Array, probabilities_NM: Array) -> tuple[Array, Array]:
    """Returns 1 / rank of each row's right option as the second array; of equally probable options, the mean rank."""
    own_N1 = probabilities_NM[np.arange(len(gold)), gold][:, None]
    higher_N, equal_N = (probabilities_NM > own_N1).sum(1), (probabilities_NM == own_N1).sum(1)
    return gold, 1 / (higher_N + (equal_N + 1) / 2)


# --- ranks of pairs ---------------------------------------------------------------------------------------------------


def reciprocal_ranks(_: Array, ranks_N: Array) -> Floats:
    return np.asarray(1 / np.asarray(ranks_N, np.float64))


def found_in_first(count: int) -> Callable[[Array, Array], Floats]:
    """Returns the function that says of each row whether a right candidate is among the first ones."""
    return lambda _, ranks_N: np.asarray(ranks_N <= count, np.float64)


def _mean_over_pairs(name: str, row_values: Callable[[Array, Array], Floats]) -> Metric:
    return Metric(name, _mean_of_rows(row_values), True, ("match",), row_values=row_values)


# --- the table --------------------------------------------------------------------------------------------------------

_CLASSES: tuple[LabelKind, ...] = ("classes", "yes_no")
_SETS: tuple[LabelKind, ...] = ("multilabel",)
_OPTIONS: tuple[LabelKind, ...] = ("choice",)


def _average_precision(name: str, function: Callable[[Array, Array], Floats], columns: Columns) -> Metric:
    return Metric(name, function, True, _SETS, columns=columns, scale=intervals.LOG_ODDS)


METRICS: tuple[Metric, ...] = (
    Metric("accuracy", _over_margins(_accuracy), True, ("classes", "yes_no"), _accuracy),
    Metric("accuracy", _mean_of_rows(_is_right), True, _OPTIONS, row_values=_is_right),
    Metric("f1", _over_margins(_f1_yes), True, ("yes_no",), _f1_yes),
    Metric("f1", _over_margins(_f1_macro), True, ("classes",), _f1_macro),
    Metric("matthews", _over_margins(_matthews), True, ("classes", "yes_no"), _matthews),
    Metric("pearson", _pearson, True, ("score",), scale=intervals.FISHER_Z),
    Metric("spearman", _spearman, True, ("score",), order_only=True, scale=intervals.FISHER_Z),
    Metric("perplexity", _perplexity, False, ("text",), scale=intervals.LOG),
    Metric("f1_weighted", _over_margins(_f1_weighted), True, _CLASSES, _f1_weighted),
    Metric("auc", _auc, True, _CLASSES, columns=_against_rest, influence=_auc_influence, scale=intervals.LOG_ODDS),
    Metric("mrr", _mean_of_second, True, _OPTIONS, columns=_reciprocal_ranks, scale=intervals.LOG_ODDS),
    Metric("log_loss", _mean_of_second, False, (*_CLASSES, *_OPTIONS), columns=_log_losses, scale=intervals.LOG),
    Metric("calibration_error", _calibration_error, False, (*_CLASSES, *_OPTIONS), columns=confidence_gaps),
    Metric("mae", _mae, False, ("score",), scale=intervals.LOG),
    Metric("rmse", _rmse, False, ("score",), scale=intervals.LOG),
    Metric("r2", _r2, True, ("score",), scale=intervals.LOG_BELOW_ONE),
    Metric("f1_micro", _over_sets(label_sets.f1_micro), True, _SETS, label_sets.f1_micro),
    Metric("f1_macro", _over_sets(label_sets.f1_macro), True, _SETS, label_sets.f1_macro),
    Metric("subset_accuracy", _mean_of_rows(label_sets.all_right), True, _SETS, row_values=label_sets.all_right),
    Metric("hamming_loss", _mean_of_rows(label_sets.wrong_share), False, _SETS, row_values=label_sets.wrong_share),
    _average_precision("average_precision", label_sets.average_precision, label_sets.codes_by_class),
    _average_precision("average_precision_micro", label_sets.average_precision_micro, label_sets.codes_of_all),
    _mean_over_pairs("mrr", reciprocal_ranks),
    _mean_over_pairs("recall@1", found_in_first(1)),
    _mean_over_pairs("recall@10", found_in_first(10)),
    *(
        Metric(name, spans.over_tallies(from_margins), True, ("tokens",), from_margins)
        for name, from_margins in (
            ("f1", spans.f1),
            ("accuracy", spans.accuracy),
            ("f1_macro", spans.f1_macro),
            ("precision", spans.precision),
            ("recall", spans.recall),
        )
    ),
)


DIMENSIONS: dict[LabelKind, int] = {"multilabel": 2, "tokens": 3}
"""The dimensions of the two arrays that metrics take, for kinds where a label is not one number."""
KNOWN_METRICS = frozenset(metric.name for metric in METRICS)


def metrics_for(kind: LabelKind) -> tuple[Metric, ...]:
    """Returns the metrics of a label kind that studies can compare runs by; the first is the default."""
    return tuple(metric for metric in all_metrics_for(kind) if metric.columns is None)


def all_metrics_for(kind: LabelKind) -> tuple[Metric, ...]:
    """Returns every metric that suits a label kind, which may be that of a plug-in."""
    return tuple(metric for metric in METRICS if form_of(kind) in metric.kinds)


def primary_metric(kind: LabelKind, scheme: TagScheme | None = None) -> str:
    """Returns the default metric of a label kind; `scheme` is that of tags of words, if it is known."""
    return "accuracy" if scheme == "plain" else metrics_for(kind)[0].name


def check_metric(metric: str | None, kind: LabelKind, where: str) -> str:
    """Returns the metric's name if studies can compare runs by it, or the kind's default where none is given."""
    names = [entry.name for entry in metrics_for(kind)]
    if metric is not None and metric not in names:
        others = [entry.name for entry in all_metrics_for(kind)]
        why = "needs probabilities" if metric in others else f"is not a built-in metric of kind {kind}"
        raise UserError(f"{where}: runs cannot be compared by {metric!r}, which {why}; use one of: {', '.join(names)}")
    return metric or names[0]


def chosen_metric(
    metric: str | None, kind: LabelKind, where: str, own: tuple[Metric, ...] = (), scheme: TagScheme | None = None
) -> Metric:
    """Returns the metric that a recipe chooses among those of the kind and its own, or the kind's default."""
    metrics = {entry.name: entry for entry in (*all_metrics_for(kind), *own)}
    if metric is not None and metric not in metrics:
        raise UserError(unknown(where, metric, metrics, "metric", f" for kind {kind}"))
    return metrics[metric or primary_metric(kind, scheme)]
