"""The statistics of a verdict: how far a mean over runs can be from the truth. Knows arrays, not studies or files.

The truth is the mean score of a recipe over new training seeds and new examples, so a mean over S runs and N dev
examples has two sources of noise. With x_si the contribution of example i to the score (or difference) of seed s:

    x_si = truth + seed_s + example_i + both_si        Var(mean) = seed/S + example/N + both/(S N)
    V_seeds    = variance over seeds of the runs' scores / S        estimates  seed/S + both/(S N), S - 1 degrees
    V_examples = variance over examples of the seeds' mean / N      estimates  example/N + both/(S N), N - 1 degrees
    V_both     = variance of the residual / (S N)                   would be counted twice

For any metric, x_si is the metric plus the influence of the example (delete-one jackknife of a confusion matrix,
influence function of a correlation); for accuracy it is 1 or 0. The half width of an interval at level p is (Howe 1974;
Burdick & Graybill 1992)

    half(p)^2 = t_{S-1}(p)^2 V_seeds + t_{N-1}(p)^2 (V_examples - V_both),   at least t_{N-1}(p)^2 V_examples

and the p value of a difference is the p at which half(p) equals it, so that the test and the interval agree. With one
seed the first term is unknown and left out: the interval then describes these trained models, not the recipes, and
nothing is claimed from it. seed_noise.py holds what a comparison can borrow from the study's other comparisons.

Methods that simulation ruled out (false claims at a level of 5 %, and of 0.25 %, which Holm's correction needs for 20
comparisons):
- resampling examples and seeds together: up to 24 % at S = 3 and 39 % at S = 2, because so few seeds hide their spread;
- one t with Welch-Satterthwaite degrees: up to 8 % and 2 % at S = 3, because a spread can be small by chance;
- pooling the seed variance over variants, or moderating it as limma does: up to 40 % and 28 % false claims per study
  if one of six recipes is unstable; seed_noise.py has the form that holds.
The price: where seed noise is small, intervals cover 97 to 99 % at S = 2 to 5, and with three seeds a claim needs a
difference that is large compared with the spread of the seeds. The limit: seed noise is assumed to be symmetric. If one
of four recipes has runs that sometimes collapse, 7 % of studies with five seeds make a false claim.

A permutation test that swaps examples (all seeds of an example together) is the second test: it holds for any
distribution of the example noise, but ignores seeds; swapping whole seeds has only 2^S outcomes. A claim needs both.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from polytask.evaluation.intervals import BATCH_NUMBERS
from polytask.evaluation.label_sets import rows_of_margins
from polytask.evaluation.metrics import Metric, margins, ranks
from polytask.evaluation.spans import rows_of_tallies

Array = NDArray[Any]
Floats = NDArray[np.float64]

SMALLEST_P = 1e-12
CORRELATIONS = ("pearson", "spearman")


# --- the influence of each example on a score -------------------------------------------------------------------------


def influence(metric: Metric, gold: Array, predicted: Array, classes: int) -> Floats:
    """Returns each example's influence x on the metric [N], with sum 0; the metric's variance is mean(x^2) / N."""
    if metric.row_values is not None:
        values = metric.row_values(gold, predicted)
        return np.asarray(values - values.mean(), np.float64)
    if metric.from_margins is not None and gold.ndim == 2:
        return _jackknife_of_rows(metric, gold, predicted, rows_of_margins)
    if metric.from_margins is not None and gold.ndim == 3:
        return _jackknife_of_rows(metric, gold, predicted, rows_of_tallies)
    if metric.from_margins is not None:
        return _jackknife(metric, gold, predicted, classes)
    if not np.isfinite(predicted).all():  # a run that diverged has a correlation of 0 for any examples
        return np.zeros(len(gold))
    if metric.name in CORRELATIONS:
        return _correlation_influence(gold, predicted, ranked=metric.order_only)
    return _left_out(metric, gold, predicted)


def _left_out(metric: Metric, gold: Array, predicted: Array) -> Floats:
    """Runs the delete-one jackknife on a metric of which only the function is known; N^2 numbers, in batches."""
    n = len(gold)
    without = np.empty(n)
    batch = max(1, BATCH_NUMBERS // n)
    for start in range(0, n, batch):
        out = np.arange(start, min(n, start + batch))
        kept = np.arange(n - 1) + (np.arange(n - 1) >= out[:, None])
        without[out] = metric.function(gold[kept], predicted[kept])
    influences: Floats = (n - 1) * (without.mean() - without)
    return influences


def _jackknife(metric: Metric, gold: Array, predicted: Array, classes: int) -> Floats:
    """Leaves out one row of each cell of the confusion matrix; rows of the same cell have the same influence."""
    assert metric.from_margins is not None
    cells, cell_of, counts = np.unique(gold * classes + predicted, return_inverse=True, return_counts=True)
    all_rows = margins(gold, predicted, classes)
    without = np.empty(len(cells))
    batch = max(1, BATCH_NUMBERS // (3 * classes))
    for start in range(0, len(cells), batch):
        true, guessed = np.divmod(cells[start : start + batch], classes)
        row = np.arange(len(true))
        left = np.repeat(all_rows[None], len(true), axis=0)
        left[row, 0, true] -= true == guessed
        left[row, 1, guessed] -= 1
        left[row, 2, true] -= 1
        without[start : start + batch] = metric.from_margins(left)
    influences: Floats = (len(gold) - 1) * (without @ counts / len(gold) - without)[cell_of]
    return influences


def _jackknife_of_rows(
    metric: Metric, gold: Array, predicted: Array, rows_of: Callable[[Array, Array], Array]
) -> Floats:
    """Leaves out each row, where rows have several classes or words; `rows_of` returns their parts of the margins."""
    assert metric.from_margins is not None
    n, batch = len(gold), max(1, BATCH_NUMBERS // (3 * gold.shape[-1]))
    parts = [slice(start, start + batch) for start in range(0, n, batch)]
    all_rows = np.sum([rows_of(gold[part], predicted[part]).sum(0) for part in parts], axis=0)
    rows = (rows_of(gold[part], predicted[part]) for part in parts)
    without = np.concatenate([metric.from_margins(all_rows - some) for some in rows])
    influences: Floats = (n - 1) * (without.mean() - without)
    return influences


def _correlation_influence(gold: Array, predicted: Array, ranked: bool) -> Floats:
    """Runs the jackknife of Pearson's r; with `ranked` of Spearman's, where an example also moves the ranks above it.

    The influence on the three moments is exact, and r is then recomputed without each example: the influence function
    of r itself makes intervals too short at N = 100.
    """
    n = len(gold)
    columns = [np.asarray(column, np.float64) for column in (gold, predicted)]
    if ranked:
        columns = [ranks(column) / n for column in columns]
    if any(np.ptp(column) <= 1e-13 * np.abs(column).max() for column in columns):
        return np.zeros(n)
    x, y = (column - column.mean() for column in columns)
    x, y = x / x.std(), y / y.std()
    products = [x * y, x * x, y * y]
    if ranked:
        products[0] += _rank_shift(gold, y) / columns[0].std() + _rank_shift(predicted, x) / columns[1].std()
        products[1] += 2 * _rank_shift(gold, x) / columns[0].std()
        products[2] += 2 * _rank_shift(predicted, y) / columns[1].std()
    moments = ((x * y).mean(), 1.0, 1.0)
    xy, xx, yy = (
        moment - (product - product.mean()) / (n - 1) for moment, product in zip(moments, products, strict=True)
    )
    without = xy / np.sqrt(np.maximum(xx * yy, 1e-12))
    influences: Floats = (n - 1) * (without.mean() - without)
    return influences


def _rank_shift(scores: Array, weights: Floats) -> Floats:
    """Sums, for each example [N], the weights of the examples that score higher (ties by half), divided by N."""
    _, place = np.unique(scores, return_inverse=True)
    sums = np.bincount(place, weights)
    above: Floats = (sums.sum() - sums.cumsum() + sums / 2)[place] / len(scores)
    return above


# --- the two sources of noise -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Noise:
    """The estimated noise of one mean (or difference of means)."""

    seeds: tuple[tuple[float, float], ...]
    """Variances of the mean over seeds, with their degrees of freedom; empty with one seed, where it is unknown."""
    examples: float
    """Variance of the mean over examples, including the part that both sources share."""
    both: float
    """The shared part."""
    degrees: int
    """Degrees of freedom of the variance over examples."""

    def half_width(self, p: float) -> float:
        """Returns half the width of the interval that misses the truth with probability p."""
        example_t = special.stdtrit(self.degrees, p / 2) ** 2
        by_seeds = sum(variance * special.stdtrit(degrees, p / 2) ** 2 for variance, degrees in self.seeds)
        own = max(self.examples - self.both, 0.0)
        return float(np.sqrt(max(by_seeds + example_t * own, example_t * self.examples)))

    def p_value(self, difference: float) -> float:
        """Returns the two-sided p at which the interval around the difference just reaches 0."""
        return p_where(self.half_width, difference)

    def with_seeds(self, seeds: int) -> "Noise":
        """Returns the noise of so many runs, each as noisy as these."""
        runs = [degrees + 1 for _, degrees in self.seeds]
        each = tuple((variance * r / seeds, seeds - 1) for (variance, _), r in zip(self.seeds, runs, strict=True))
        both = self.both * min(runs) / seeds
        return Noise(each, self.examples - self.both + both, both, self.degrees)


def p_where(half_width: Callable[[float], float], difference: float) -> float:
    """Returns the p at which the half width, which falls as p rises, equals the size of the difference."""
    size = abs(difference)
    if size == 0.0 or half_width(1.0) >= size:
        return 1.0
    if half_width(SMALLEST_P) <= size:
        return SMALLEST_P
    from scipy import optimize  # takes a while to import, and few commands test  # noqa: PLC0415

    log_p = optimize.brentq(lambda log: half_width(float(np.exp(log))) - size, np.log(SMALLEST_P), 0.0)
    return float(np.exp(log_p))


@dataclass(frozen=True)
class Runs:
    """The runs of a variant on one task, or the differences of its runs to those of the reference, paired by seed."""

    scores_S: Floats
    influence_SN: Floats
    """The influence of every example on every score."""

    def __sub__(self, other: "Runs") -> "Runs":
        return Runs(self.scores_S - other.scores_S, self.influence_SN - other.influence_SN)

    def __getitem__(self, seeds: Sequence[int]) -> "Runs":
        return Runs(self.scores_S[list(seeds)], self.influence_SN[list(seeds)])


def noise(groups: Sequence[Sequence[Runs]], counted: Sequence[float]) -> Noise:
    """Estimates the noise of a mean over seeds and tasks, or of a difference of two.

    A group holds, for each task, runs that are paired by seed: one group for a variant or for a paired difference, two
    (the second with the opposite sign) for a difference without common seeds. Each task has its own dev set.

    `counted` is, for each task, the squared width of the metric's range times the number of variants, and 0 for scores.
    Small counts get two corrections: artificial examples with the largest possible influence (Bonett & Price 2012), so
    that agreement on every example does not prove equality; and the variance that rounding to whole examples hides, so
    that seeds with equal scores do not prove that there is no seed noise.
    """
    tasks = len(counted)
    sizes = [runs.influence_SN.shape[1] for runs in groups[0]]
    examples = 0.0
    for t, (extra, n) in enumerate(zip(counted, sizes, strict=True)):
        influence_N = np.sum([group[t].influence_SN.mean(0) for group in groups], axis=0)
        examples += float(influence_N @ influence_N + extra) / (n * (n - 1)) / tasks**2
    rounding = sum(extra / n**2 for extra, n in zip(counted, sizes, strict=True)) / 12 / tasks**2 / len(groups)
    seeds, both = [], 0.0
    for group in groups:
        s = len(group[0].scores_S)
        if s == 1:
            return Noise((), examples, 0.0, min(sizes) - 1)
        spread = np.mean([runs.scores_S for runs in group], axis=0).var(ddof=1) + rounding
        seeds.append((float(spread) / s, s - 1))
        for runs, n in zip(group, sizes, strict=True):
            rest_SN = runs.influence_SN - runs.influence_SN.mean(0)
            both += float((rest_SN**2).sum()) / ((s - 1) * (n - 1)) / (s * n) / tasks**2
    return Noise(tuple(seeds), examples, both, min(sizes) - 1)


def interval(mean: float, half: float, low: float, high: float, shrink: float = 1.0) -> tuple[float, float]:
    """Returns mean +- half on the log-odds scale (Fisher's z for correlations), which stays inside the metric's range.

    For a metric without a bounded range it is mean +- half. `shrink` is N / (N + 2) for counts: one artificial example
    at each end gives 100 % accuracy a lower end (Agresti & Coull).
    """
    if not np.isfinite(high - low):  # RMSE, for example
        return mean - half, mean + half
    scale = (high - low) / 2
    centre = ((mean - low) / scale - 1) * min(shrink, 1 - 1e-9)
    z, reach = np.arctanh(centre), half / scale / (1 - centre**2)
    ends = (np.tanh([z - reach, z + reach]) + 1) * scale + low
    return min(float(ends[0]), mean), max(float(ends[1]), mean)


# --- tests ------------------------------------------------------------------------------------------------------------


def swapped(parts_PN: Floats, resamples: int, rng: np.random.Generator) -> Floats:
    """Computes the means of the rows with the two variants swapped in random examples: [resamples, P].

    It does the same as scipy.stats.permutation_test with permutation_type="samples", but for all rows at once and as a
    matmul, which is about fifty times faster on 20,000 examples.
    """
    rows, n = parts_PN.shape
    means = np.empty((resamples, rows))
    batch = max(8, 8 * BATCH_NUMBERS // n)
    parts_NP = parts_PN.T.astype(np.float32)
    for start in range(0, resamples, batch):
        count = min(batch, resamples - start)
        bits = np.unpackbits(np.frombuffer(rng.bytes(count * (-(-n // 8))), np.uint8).reshape(count, -1), axis=1)[:, :n]
        means[start : start + count] = (2 * (bits.astype(np.float32) @ parts_NP) - parts_NP.sum(0)) / n
    return means


def swap_p(difference: float, swapped_means: Floats) -> float:
    """Returns the share of swaps with a difference at least as large, the observed one included (so never 0)."""
    rounding = 1e-6 * float(np.abs(swapped_means).max(initial=abs(difference)))
    return float((1 + (np.abs(swapped_means) >= abs(difference) - rounding).sum()) / (1 + len(swapped_means)))


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusts p values so that claiming all up to a has a risk of at most a of any false claim (Holm 1979)."""
    p = np.asarray(p_values, np.float64)
    order = np.argsort(p, kind="stable")
    adjusted = np.empty(len(p))
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)))
    return [float(value) for value in adjusted]
