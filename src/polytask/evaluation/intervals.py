"""95 % intervals over examples that hold for few rows and for scores near the ends of their range.

An interval should contain the metric over all examples of the same kind, of which a split is a sample. Resampling the
rows cannot show a mistake that is not among them: 20 right answers of 20 give [1, 1]. So every method here allows for
one more row than was seen, as the exact interval of a proportion does. Knows arrays; knows no metric by name.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special  # has what scipy.stats computes with, which takes a second to import

Array = NDArray[Any]
Floats = NDArray[np.float64]
Ends = tuple[float, float]
Function = Callable[[Array, Array], Any]

CONFIDENCE = 0.95
TAIL = (1 - CONFIDENCE) / 2
RESAMPLES = 1000
FEWER_RESAMPLES = 400
"""Used where every resample is a separate call, or the rows show no noise."""
# Numbers in one array of resamples; about ten such arrays are alive at once, so this stays near 50 MB.
BATCH_NUMBERS = 600_000
CACHED_NUMBERS = 60_000
"""Numbers in one array of rows that the jackknife keeps: about ten such arrays fit into a core's cache."""
GROUPS = 100
"""From 200 rows, the jackknife leaves out this many groups of rows instead of single rows; its error is about 7 %."""
FEWEST_ROWS = 4
"""With fewer rows, the interval of a correlation or an error is its whole range."""


@dataclass(frozen=True)
class Scale:
    """A scale on which a metric's sampling distribution is nearly symmetric and intervals stay inside its range."""

    forward: Callable[[Floats], Floats]
    back: Callable[[Floats], Floats]
    bounds: Ends
    """Lowest and highest value of the metric."""


FISHER_Z = Scale(np.arctanh, np.tanh, (-1.0, 1.0))
LOG_ODDS = Scale(lambda v: np.log(v / (1 - v)), lambda v: 1 / (1 + np.exp(-v)), (0.0, 1.0))
LOG = Scale(np.log, np.exp, (0.0, np.inf))
LOG_BELOW_ONE = Scale(lambda v: np.log(1 - v), lambda v: 1 - np.exp(v), (-np.inf, 1.0))


# --- shares and confusion matrices ------------------------------------------------------------------------------------


def of_share(count: int, rows: int) -> Ends:
    """Returns Clopper & Pearson's exact interval, which covers at least 95 % for any rate and number of rows."""
    low = float(special.betaincinv(count, rows - count + 1, TAIL)) if count else 0.0
    high = float(special.betaincinv(count + 1, rows - count, 1 - TAIL)) if count < rows else 1.0
    return low, high


def of_matrix(
    functions: Mapping[str, Callable[[Array], Floats]], gold: Array, predicted: Array, classes: int, seed: int
) -> dict[str, Ends]:
    """Returns intervals of metrics that follow from a confusion matrix, by drawing the matrix's true proportions.

    Given the counts, the proportions are Dirichlet(counts). The lower end has one more wrong row, the upper end one
    more right row, each spread evenly over the classes that occur. For accuracy that is Clopper & Pearson's interval,
    because its ends are quantiles of Beta(right, wrong + 1) and Beta(right + 1, wrong).
    """
    rng = np.random.default_rng(seed)
    present = np.union1d(gold, predicted)  # with thousands of classes, most may not occur
    if len(present) == 1:  # a wrong row needs a second class
        present = np.sort([present[0], (present[0] + 1) % classes])
    if len(present) < classes and classes > 2:
        gold, predicted, classes = np.searchsorted(present, gold), np.searchsorted(present, predicted), len(present)
        present = np.arange(classes)
    cells, counts = np.unique(gold * classes + predicted, return_counts=True)
    true, guessed = np.divmod(cells, classes)

    def draw(rows: int) -> Floats:
        weights = rng.standard_gamma(counts.astype(np.float64), (rows, len(cells)))
        right = np.where(true == guessed, weights, 0.0)
        parts = [_summed(right, true, classes), _summed(weights, guessed, classes), _summed(weights, true, classes)]
        return np.stack(parts, axis=-2)

    batch = max(1, BATCH_NUMBERS // max(len(cells), 3 * classes))
    return _of_drawn_margins(functions, draw, present, batch, rng)


def of_label_sets(functions: Mapping[str, Callable[[Array], Floats]], rows_N3C: Array, seed: int) -> dict[str, Ends]:
    """Returns intervals as `of_matrix` does, for several classes per row: `rows_N3C` is each row's part of the margins.

    The one more row has one true and one predicted class, the same (upper end) or another (lower end).
    """
    rng = np.random.default_rng(seed)
    classes = rows_N3C.shape[-1]
    present = np.flatnonzero(rows_N3C.any(axis=(0, 1)))
    if len(present) < 2:  # a wrong row needs a second class
        present = np.arange(min(2, classes))
    cells, counts = np.unique(rows_N3C.reshape(len(rows_N3C), -1), axis=0, return_counts=True)
    cells = cells.astype(np.float64)

    def draw(rows: int) -> Floats:
        weights = rng.standard_gamma(counts.astype(np.float64), (rows, len(cells)))
        margins: Floats = (weights @ cells).reshape(rows, 3, classes)
        return margins

    batch = max(1, BATCH_NUMBERS // max(len(cells), 3 * classes))
    return _of_drawn_margins(functions, draw, present, batch, rng)


def _of_drawn_margins(
    functions: Mapping[str, Callable[[Array], Floats]],
    draw: Callable[[int], Floats],
    present: Array,
    batch: int,
    rng: np.random.Generator,
) -> dict[str, Ends]:
    """Returns quantiles over drawn margins [B, 3, C], each with one more wrong row, and with one more right row."""
    samples: dict[str, tuple[list[Floats], list[Floats]]] = {name: ([], []) for name in functions}
    for start in range(0, RESAMPLES, batch):
        rows = min(batch, RESAMPLES - start)
        seen_3C = draw(rows)
        for side in (0, 1):
            one = rng.standard_gamma(1 / len(present), (rows, len(present)))
            margins_3C = seen_3C.copy()
            margins_3C[:, 2, present] += one
            margins_3C[:, 1, present] += one if side else np.roll(one, 1, axis=1)
            margins_3C[:, 0, present] += one if side else 0.0
            for name, function in functions.items():
                samples[name][side].append(function(margins_3C))
    return {
        name: (float(np.quantile(np.concatenate(low), TAIL)), float(np.quantile(np.concatenate(high), 1 - TAIL)))
        for name, (low, high) in samples.items()
    }


def _summed(weights: Floats, owner: Array, classes: int) -> Floats:
    """Sums the cells of each class: [B, cells] to [B, C]."""
    order = np.argsort(owner, kind="stable")
    present, starts = np.unique(owner[order], return_index=True)
    sums = np.zeros((len(weights), classes))
    sums[:, present] = np.add.reduceat(weights[:, order], starts, axis=1)
    return sums


def of_calibration(value: float, counts_B: Array, right_B: Array, confidence_B: Floats, seed: int) -> Ends:
    """Returns the interval of `sum_b share_b |accuracy_b - confidence_b|` over bins.

    Noise makes absolute values larger, so that few rows always look badly calibrated. The upper end comes from draws of
    the bins' shares and accuracies. The lower end is that of `|accuracy - confidence|` over all bins together: the sum
    cannot be below it, and noise hardly changes it.
    """
    rng = np.random.default_rng(seed)
    used = counts_B > 0
    counts, right, confidence = counts_B[used], right_B[used], confidence_B[used]
    shares = rng.dirichlet(counts.astype(np.float64), RESAMPLES)
    accuracies = rng.beta(right + 0.5, counts - right + 0.5, (RESAMPLES, len(counts)))
    gaps = shares * (accuracies - confidence)
    together = np.quantile(gaps.sum(1), [TAIL, 1 - TAIL])
    low = 0.0 if together[0] <= 0 <= together[1] else float(np.abs(together).min())
    return min(low, value), max(float(np.quantile(np.abs(gaps).sum(1), 1 - TAIL)), value)


# --- everything that is smooth in its rows ----------------------------------------------------------------------------


def by_jackknife(
    function: Function, columns: tuple[Array, Array], scale: Scale, other: tuple[Array, Array] | None, seed: int
) -> Ends:
    """Returns `value +- t * standard error` on the metric's scale, with the jackknife's standard error.

    Where leaving out rows shows no noise, or the value is at an end of the range (a perfect rank correlation), the rows
    are resampled together with one more row, drawn from the rows of `other`.
    """
    rows = len(columns[0])
    value = float(function(*columns))
    if rows < FEWEST_ROWS:
        return _whole_range(value, scale)
    with np.errstate(all="ignore"):
        left_out = scale.forward(_leaving_out(function, columns, seed))
        centre = float(scale.forward(np.asarray(value)))
        size = max(1, rows // GROUPS)  # rows in a group
        spread = float(np.sqrt((rows - size) / size * np.var(left_out)))
    if np.isfinite(spread) and np.isfinite(centre) and spread > 1e-12 * max(1.0, abs(centre)):
        half = float(special.stdtrit(len(left_out) - 1, 1 - TAIL)) * spread
        return _inside(scale.back(np.array([centre - half, centre + half])), value, scale)
    return _with_one_more(function, columns, other, seed) if other is not None else (value, value)


def by_influence(value: float, influence_N: Floats, scale: Scale) -> Ends:
    """Returns `value +- t * standard error` on the metric's scale, where each row's influence on it is known."""
    rows = len(influence_N)
    if rows < FEWEST_ROWS:
        return _whole_range(value, scale)
    half = float(special.stdtrit(rows - 1, 1 - TAIL)) * float(np.sqrt((influence_N**2).sum())) / rows
    low, high = value - half, value + half
    if 0 < value < 1 and scale is LOG_ODDS:
        reach = half / (value * (1 - value))
        centre = float(scale.forward(np.asarray(value)))
        low, high = scale.back(np.array([centre - reach, centre + reach])).tolist()
    return _inside(np.array([low, high]), value, scale)


def _leaving_out(function: Function, columns: tuple[Array, Array], seed: int) -> Floats:
    """Computes the metric without each of at most `GROUPS` random groups of rows of equal size."""
    rows, size = len(columns[0]), max(1, len(columns[0]) // GROUPS)
    order = np.random.default_rng(seed).permutation(rows)
    groups = order[: rows // size * size].reshape(-1, size)[:GROUPS] if size > 1 else np.arange(rows)[:, None]
    values, batch = [], max(1, CACHED_NUMBERS // rows)
    for start in range(0, len(groups), batch):
        part = groups[start : start + batch]
        keep = np.ones((len(part), rows), bool)
        np.put_along_axis(keep, part, False, axis=1)
        kept = (np.stack([column[own] for own in keep]) for column in columns)
        values.append(np.asarray(function(*kept), np.float64))
    return np.concatenate(values)


def _whole_range(value: float, scale: Scale) -> Ends:
    """Returns the metric's range, with the value in place of an infinite end, which JSON cannot store."""
    low, high = (end if np.isfinite(end) else value for end in scale.bounds)
    return min(low, value), max(high, value)


def _inside(ends: Floats, value: float, scale: Scale) -> Ends:
    low, high = sorted(np.clip(ends, *scale.bounds).tolist())
    return min(low, value), max(high, value)


# --- resampling -------------------------------------------------------------------------------------------------------


def _with_one_more(
    function: Function, columns: tuple[Array, Array], other: tuple[Array, Array], seed: int, one_by_one: bool = False
) -> Ends:
    """Returns percentiles over resamples of the rows and one more row of `other`; the value is always inside."""
    value = float(function(*columns))
    rows, more = len(columns[0]), len(other[0])
    together = [np.concatenate(pair) for pair in zip(columns, other, strict=True)]
    rng, batch = np.random.default_rng(seed), 1 if one_by_one else max(1, BATCH_NUMBERS // rows)
    drawn = []
    for start in range(0, FEWER_RESAMPLES, batch):
        taken = rng.integers(0, rows + 1, (min(batch, FEWER_RESAMPLES - start), rows))
        one_more = taken == rows
        taken[one_more] += rng.integers(0, more, int(one_more.sum()))
        values = function(*(column[taken[0] if one_by_one else taken] for column in together))
        drawn.append(np.atleast_1d(np.asarray(values, np.float64)))
    values = np.concatenate(drawn)
    values = values[np.isfinite(values)]
    ends = np.quantile(values, [TAIL, 1 - TAIL]).tolist() if len(values) else [value, value]
    return min(ends[0], value), max(ends[1], value)


def by_bootstrap(
    function: Function, columns: tuple[Array, Array], worst: tuple[Array, Array], best: tuple[Array, Array], seed: int
) -> Ends:
    """Returns percentiles for any function. One more row is drawn from the worst, then from the best rows.

    Whether a lower value is worse is unknown too, so that each end is the outer one of the two intervals.
    """
    ends = [_with_one_more(function, columns, more, seed, one_by_one=True) for more in (worst, best)]
    return min(low for low, _ in ends), max(high for _, high in ends)
