"""Metrics over whole splits, with bootstrap intervals. Knows arrays of labels, not tasks, models or files.

A metric is a record. Its function takes the true and the predicted labels, arrays [..., N] of class numbers, 0 / 1 or
scores, and works over any leading axes. Where a metric has no meaning (one class only, constant scores) it is 0.0.
Plain text has no labels: in their place stand how much was asked of each text and how surprising that was.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from polytask.types import LabelKind, LabelSpace, MetricValue, TaskScore, UserError

Array = NDArray[Any]
Floats = NDArray[np.float64]

RESAMPLES = 1000
CONFIDENCE = 0.95
# Numbers in one array of resamples; about ten such arrays are alive at once, so this stays near 50 MB.
BATCH_NUMBERS = 600_000
LARGEST_LOSS = 50.0


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


# --- plain text -------------------------------------------------------------------------------------------------------


def _perplexity(asked: Array, surprise: Array) -> Floats:
    """exp of the mean of -log p over all that was asked; a run that diverged has a huge one, and no warnings."""
    mean = np.asarray(surprise, np.float64).sum(-1) / np.maximum(asked.sum(-1), 1)
    return np.exp(np.where(np.isfinite(mean), np.minimum(mean, LARGEST_LOSS), LARGEST_LOSS))


# --- the table --------------------------------------------------------------------------------------------------------

METRICS: tuple[Metric, ...] = (
    Metric("accuracy", _over_margins(_accuracy), True, ("classes", "yes_no"), _accuracy),
    Metric("f1", _over_margins(_f1_yes), True, ("yes_no",), _f1_yes),
    Metric("f1", _over_margins(_f1_macro), True, ("classes",), _f1_macro),
    Metric("matthews", _over_margins(_matthews), True, ("classes", "yes_no"), _matthews),
    Metric("pearson", _pearson, True, ("score",)),
    Metric("spearman", _spearman, True, ("score",), order_only=True),
    Metric("perplexity", _perplexity, False, ("text",)),
)


def metrics_for(kind: LabelKind) -> tuple[Metric, ...]:
    """The metrics that suit a kind of label; the first is the one used when a recipe names none."""
    return tuple(metric for metric in METRICS if kind in metric.kinds)


def primary_metric(kind: LabelKind) -> str:
    return metrics_for(kind)[0].name


def check_metric(metric: str | None, kind: LabelKind, where: str) -> str:
    """The metric's name, or the kind's primary one where none is given; `where` starts the message of an error."""
    names = [entry.name for entry in metrics_for(kind)]
    if metric is not None and metric not in names:
        raise UserError(f"{where}: {metric!r} does not suit labels of kind {kind}; use one of: {', '.join(names)}")
    return metric or names[0]


def score(
    gold: Array, predicted: Array, labels: LabelSpace, loss: float, primary: str | None = None, seed: int = 0
) -> TaskScore:
    """Every metric of the label kind over one split, each with its 95 % bootstrap interval over examples."""
    primary = check_metric(primary, labels.kind, "metric")
    metrics = metrics_for(labels.kind)
    gold, predicted = np.asarray(gold), np.asarray(predicted)
    if gold.shape != predicted.shape or gold.ndim != 1:
        raise ValueError(f"gold {gold.shape} and predicted {predicted.shape} must be two lists of the same length")
    if len(gold) == 0:
        raise UserError("there is no labelled row to score")
    if labels.kind in ("score", "text"):
        if labels.kind == "score" and not np.isfinite(predicted).all():  # one such score spoils any correlation
            predicted = np.zeros(len(predicted))
        values = {metric.name: _measure_values(metric, gold, predicted, seed) for metric in metrics}
    else:
        classes = max(2, len(labels.classes))
        values = _measure_classes(metrics, gold.astype(np.int64), predicted.astype(np.int64), classes, seed)
    return TaskScore(loss, values, primary, len(gold), all(metric.greater_is_better for metric in metrics))


def _measure_classes(
    metrics: tuple[Metric, ...], gold: Array, predicted: Array, classes: int, seed: int
) -> dict[str, MetricValue]:
    """Drawing rows with replacement makes a multinomial confusion matrix, so that is drawn: exact and fast."""
    functions = {metric.name: metric.from_margins for metric in metrics if metric.from_margins is not None}
    rng, tail = np.random.default_rng(seed), (1 - CONFIDENCE) / 2
    cells, counts = np.unique(gold * classes + predicted, return_counts=True)  # the filled cells of the matrix
    true, said = np.divmod(cells, classes)
    batch = max(1, BATCH_NUMBERS // max(len(cells), 3 * classes))
    samples: dict[str, list[Floats]] = {name: [] for name in functions}
    for start in range(0, RESAMPLES, batch):
        drawn = rng.multinomial(len(gold), counts / len(gold), size=min(batch, RESAMPLES - start))
        right = np.where(true == said, drawn, 0)
        drawn_3C = np.stack(
            [_summed(right, true, classes), _summed(drawn, said, classes), _summed(drawn, true, classes)]
        )
        for name, function in functions.items():
            samples[name].append(function(np.moveaxis(drawn_3C, 0, -2)))
    found = margins(gold, predicted, classes)
    return {
        name: MetricValue(
            float(function(found)), *np.quantile(np.concatenate(samples[name]), [tail, 1 - tail]).tolist()
        )
        for name, function in functions.items()
    }


def _summed(drawn: Array, owner: Array, classes: int) -> NDArray[np.int64]:
    """[B, cells] to [B, C]: the sum of each class's cells."""
    order = np.argsort(owner, kind="stable")
    present, starts = np.unique(owner[order], return_index=True)
    sums = np.zeros((len(drawn), classes), np.int64)
    sums[:, present] = np.add.reduceat(drawn[:, order], starts, axis=1)
    return sums


def _measure_values(metric: Metric, gold: Array, predicted: Array, seed: int) -> MetricValue:
    value = float(metric.function(gold, predicted))
    if len(gold) < 2:
        return MetricValue(value, value, value)

    def statistic(x: Array, y: Array, axis: int = -1) -> Floats:
        return metric.function(x, y)  # scipy always puts the rows on the last axis

    result = stats.bootstrap(
        (_codes(gold), _codes(predicted)) if metric.order_only else (gold, predicted),
        statistic,
        n_resamples=RESAMPLES,
        batch=max(1, BATCH_NUMBERS // len(gold)),
        vectorized=True,
        paired=True,
        confidence_level=CONFIDENCE,
        method="percentile",
        rng=np.random.default_rng(seed),
    )
    low, high = result.confidence_interval
    return MetricValue(value, float(low), float(high))
