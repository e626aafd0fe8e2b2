"""What a comparison of runs is about and what it says: records, and each finding as a plain sentence.

Knows labels and predictions as arrays, not files or recipes. The statistics are in statistics.py, the judging in
verdict.py.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from polytask.evaluation.comparison.statistics import CORRELATIONS
from polytask.evaluation.intervals import CONFIDENCE
from polytask.evaluation.metrics import Metric, check_metric, metrics_for
from polytask.types import LabelKind

Array = NDArray[Any]
Claim = Literal["better", "worse", "same", "undecided"]

MEAN = "mean"
"""Stands in a record's `task` for the mean of the tasks' primary metrics."""
LEVEL = 1 - CONFIDENCE
MARGIN = 0.005
"""Differences up to this are too small to matter, unless a study says otherwise: half a point."""


@dataclass(frozen=True)
class TaskData:
    """What every run of a study predicted on one task's dev set."""

    name: str
    kind: LabelKind
    classes: int
    """How many (2 for yes_no); not used for scores."""
    metric: str
    gold: Array
    """[N]: class numbers, 0 / 1, or scores."""
    predictions: Mapping[str, Array]
    """For each variant [S, N], a row for each seed, in the order of the study's seeds."""

    def __post_init__(self) -> None:
        check_metric(self.metric, self.kind, f"task {self.name}: metric")
        if self.name == MEAN:
            raise ValueError(f"a task cannot be called {MEAN!r}: that is the mean over tasks")
        if self.gold.ndim != 1 or len(self.gold) < 2:
            raise ValueError(f"task {self.name}: gold must be a list of at least 2 labels, not {self.gold.shape}")
        for variant, predicted in self.predictions.items():
            if predicted.ndim != 2 or len(predicted) == 0 or predicted.shape[1] != len(self.gold):
                raise ValueError(
                    f"task {self.name}, variant {variant}: predictions must be [seeds, {len(self.gold)}],"
                    f" not {predicted.shape}"
                )
            if self.kind != "score" and not ((predicted >= 0) & (predicted < self.classes)).all():
                raise ValueError(f"task {self.name}, variant {variant}: a class outside 0 to {self.classes - 1}")

    @classmethod
    def from_runs(
        cls,
        name: str,
        kind: LabelKind,
        classes: int,
        metric: str,
        runs: Mapping[str, Sequence[tuple[Array, Array]]],
    ) -> "TaskData":
        """From the gold and predicted labels of every run, which must all have the same gold labels."""
        golds = [(variant, np.asarray(gold)) for variant, pairs in runs.items() for gold, _ in pairs]
        if not golds:
            raise ValueError(f"task {name}: there are no runs")
        for variant, gold in golds:
            if not np.array_equal(gold, golds[0][1]):
                raise ValueError(
                    f"task {name}: the true labels of {variant} are not those of {golds[0][0]}: another dev set?"
                )
        rows = {variant: np.stack([_finite(said) for _, said in pairs]) for variant, pairs in runs.items()}
        return cls(name, kind, classes, metric, golds[0][1], rows)

    @property
    def measure(self) -> Metric:
        return next(metric for metric in metrics_for(self.kind) if metric.name == self.metric)

    @property
    def range(self) -> tuple[float, float]:
        """The lowest and the highest value that the metric can have; infinite where that is not known."""
        if self.measure.from_margins is None and self.metric not in CORRELATIONS:
            return float("-inf"), float("inf")
        return (-1.0 if self.metric in ("matthews", *CORRELATIONS) else 0.0), 1.0

    @property
    def counted(self) -> float:
        """The squared width of the range; 0 for what is not counted (see `statistics.noise`)."""
        return 0.0 if self.measure.from_margins is None else (self.range[1] - self.range[0]) ** 2

    @property
    def shrink(self) -> float:
        """See `statistics.interval`."""
        return 1.0 if self.measure.from_margins is None else len(self.gold) / (len(self.gold) + 2)


@dataclass(frozen=True)
class VariantScore:
    """One variant on one task, or on the mean of the tasks: what new seeds and new examples would give."""

    variant: str
    task: str
    mean: float
    """Over seeds."""
    low: float
    high: float
    """Ends of the 95 % interval of the mean, over examples and seeds together."""
    seed_deviation: float | None
    """Standard deviation over seeds; None with one seed."""
    values: tuple[float, ...]
    """Of each seed."""
    examples: int

    @property
    def seeds(self) -> int:
        return len(self.values)

    @property
    def seed_noise_known(self) -> bool:
        """False: one seed, and the interval is over examples only."""
        return self.seed_deviation is not None


@dataclass(frozen=True)
class Comparison:
    """A variant against the reference on one task, or on the mean of the tasks. Differences are variant - reference."""

    variant: str
    reference: str
    task: str
    difference: float
    low: float
    high: float
    """Ends of the 95 % interval of this difference alone, over examples and seeds together."""
    p_noise: float
    """At which this interval reaches 0; of examples alone with one seed."""
    p_study: float
    """The same with what the study's other comparisons say about seed noise (seed_noise.py); 1 with one seed."""
    p_swap: float
    """Of the permutation test that swaps the variants in random examples: examples only, but no assumption."""
    p: float
    """The larger of p_study and p_swap."""
    p_holm: float
    """Adjusted for all comparisons of the study."""
    p_same: float
    """At which the interval just lies within the margin (two one-sided tests), times the comparisons (Bonferroni)."""
    margin: float
    claim: Claim
    """What can be said with at most 5 % risk of any false claim in the whole study."""
    greater_is_better: bool
    """False: a lower value of the metric is better."""
    effect_seeds: float | None
    """Cohen's d over runs: difference / root mean square of the two standard deviations over seeds; None without."""
    effect_examples: float
    """Difference / standard deviation over examples of its parts (mean over tasks: of the tasks' effects)."""
    detectable: float | None
    """The smallest true difference that this study would claim with 80 % probability, at the first step of Holm; None
    with one seed, which can claim nothing."""
    seeds_needed: int | None
    """With so many seeds, as noisy as these, an undecided difference of this size could be claimed; None: one seed,
    never, or not undecided."""
    seed_differences: tuple[float, ...] | None
    """Of each common seed; None without common seeds."""
    seed_deviation: float | None
    """Standard deviation over seeds of the difference of two runs; None with one seed."""
    example_error: float
    """Standard error of the difference that comes from the examples."""
    seeds: int
    """Runs of each variant that took part; the smaller number if they are not paired."""
    paired: bool
    """By seed."""
    seed_noise_known: bool
    """False: one seed, and everything here describes these trained models, not the recipes."""
    examples: int
    comparisons: int
    """In the study, for Holm."""


@dataclass(frozen=True)
class Verdict:
    """Everything that can be said about a study."""

    reference: str
    scores: tuple[VariantScore, ...]
    comparisons: tuple[Comparison, ...]


def _finite(predicted: Array) -> Array:
    """All zeros for a run that diverged, as where single runs are scored."""
    predicted = np.asarray(predicted)
    return predicted if np.isfinite(predicted).all() else np.zeros_like(predicted)
