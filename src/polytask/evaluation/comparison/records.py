"""The records of a comparison: the predictions that go in, and the scores and differences that come out.

Knows labels and predictions as arrays, not files or recipes. The statistics are in statistics.py, the judging in
verdict.py, the sentences in studies/sentences.py.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from polytask.evaluation.comparison.statistics import CORRELATIONS
from polytask.evaluation.intervals import CONFIDENCE
from polytask.evaluation.metrics import DIMENSIONS, Metric, check_metric, metrics_for
from polytask.types import LabelKind

Array = NDArray[Any]
Claim = Literal["better", "worse", "same", "undecided"]

MEAN = "mean"
"""A record's `task` if it is about the mean of the tasks' primary metrics."""
LEVEL = 1 - CONFIDENCE
MARGIN = 0.005
"""The default margin: differences up to half a point are too small to matter."""


@dataclass(frozen=True)
class TaskData:
    """The predictions of every run of a study on one task's dev set."""

    name: str
    kind: LabelKind
    classes: int
    """The number of classes (2 for yes_no); not used for scores and options."""
    metric: str
    gold: Array
    """[N]: class numbers, 0 / 1, scores, or indices of options; [N, C] of 0 / 1 for several classes per row; [N, 3, C]
    counts for tags; ones for kind match."""
    predictions: Mapping[str, Array]
    """For each variant [S, N], or [S, N, C]: a row for each seed, in the order of the study's seeds. Ranks for kind
    match."""

    def __post_init__(self) -> None:
        check_metric(self.metric, self.kind, f"task {self.name}: metric")
        if self.name == MEAN:
            raise ValueError(f"a task cannot be called {MEAN!r}, which is the name of the mean over tasks")
        if self.gold.ndim != DIMENSIONS.get(self.kind, 1) or len(self.gold) < 2:
            raise ValueError(f"task {self.name}: gold must be a list of at least 2 labels, found {self.gold.shape}")
        for variant, predicted in self.predictions.items():
            if len(predicted) == 0 or predicted.shape[1:] != self.gold.shape:
                raise ValueError(
                    f"task {self.name}, variant {variant}: predictions must be {['seeds', *self.gold.shape]},"
                    f" found {predicted.shape}"
                )
            if (
                self.kind in ("classes", "yes_no", "multilabel")
                and not ((predicted >= 0) & (predicted < self.classes)).all()
            ):
                raise ValueError(f"task {self.name}, variant {variant}: classes must be in [0, {self.classes - 1}]")

    @classmethod
    def from_runs(
        cls,
        name: str,
        kind: LabelKind,
        classes: int,
        metric: str,
        runs: Mapping[str, Sequence[tuple[Array, Array]]],
    ) -> "TaskData":
        """Builds it from (gold, predicted) of every run; the gold labels of all runs must be the same."""
        golds = [(variant, np.asarray(gold)) for variant, pairs in runs.items() for gold, _ in pairs]
        if not golds:
            raise ValueError(f"task {name} has no runs")
        for variant, gold in golds:
            if not np.array_equal(gold, golds[0][1]):
                raise ValueError(
                    f"task {name}: the true labels of {variant} and {golds[0][0]} differ; were they scored on "
                    "different dev sets?"
                )
        rows = {variant: np.stack([_finite(predicted) for _, predicted in pairs]) for variant, pairs in runs.items()}
        return cls(name, kind, classes, metric, golds[0][1], rows)

    @property
    def measure(self) -> Metric:
        return next(metric for metric in metrics_for(self.kind) if metric.name == self.metric)

    @property
    def _counts(self) -> bool:
        """Whether the metric follows from counts of rows."""
        return self.measure.from_margins is not None or self.measure.row_values is not None

    @property
    def range(self) -> tuple[float, float]:
        """The lowest and the highest value that the metric can have; infinite if unknown."""
        if not self._counts and self.metric not in CORRELATIONS:
            return float("-inf"), float("inf")
        return (-1.0 if self.metric in ("matthews", *CORRELATIONS) else 0.0), 1.0

    @property
    def counted(self) -> float:
        """The squared width of the range; 0 for metrics that are not counts (see `statistics.noise`)."""
        return 0.0 if not self._counts else (self.range[1] - self.range[0]) ** 2

    @property
    def shrink(self) -> float:
        """The factor that `statistics.interval` shrinks the centre of an interval by."""
        return 1.0 if not self._counts else len(self.gold) / (len(self.gold) + 2)


@dataclass(frozen=True)
class VariantScore:
    """The score of one variant on one task, or on the mean of the tasks, over new seeds and new examples."""

    variant: str
    task: str
    mean: float
    """The mean over seeds."""
    low: float
    high: float
    """The ends of the 95 % interval of the mean, over examples and seeds together."""
    seed_deviation: float | None
    """Standard deviation over seeds; None with one seed."""
    values: tuple[float, ...]
    """The score of each seed."""
    examples: int

    @property
    def seeds(self) -> int:
        return len(self.values)

    @property
    def seed_noise_known(self) -> bool:
        """False with one seed: the interval is then over examples only."""
        return self.seed_deviation is not None


@dataclass(frozen=True)
class Comparison:
    """A variant compared with the reference on one task, or on the mean of the tasks.

    Differences are variant - reference.
    """

    variant: str
    reference: str
    task: str
    difference: float
    low: float
    high: float
    """The ends of the 95 % interval of this difference alone, over examples and seeds together."""
    p_noise: float
    """The p value at which this interval reaches 0; with one seed, over examples only."""
    p_study: float
    """The same, using the seed noise of the study's other comparisons (seed_noise.py); 1 with one seed."""
    p_swap: float
    """The p value of the permutation test that swaps the variants in random examples; it ignores seed noise, and makes
    no assumption about the noise of examples."""
    p: float
    """The larger of p_study and p_swap."""
    p_holm: float
    """`p` adjusted for all comparisons of the study."""
    p_same: float
    """The p value at which the interval just fits into the margin (two one-sided tests), times the number of
    comparisons (Bonferroni)."""
    margin: float
    claim: Claim
    """The claim that has at most 5 % risk of any false claim in the whole study."""
    greater_is_better: bool
    """False if a lower value of the metric is better."""
    effect_seeds: float | None
    """Cohen's d over runs: difference / root mean square of the two standard deviations over seeds; None with one
    seed."""
    effect_examples: float
    """The difference / its standard deviation over examples (for the mean of the tasks, the mean of their effects)."""
    detectable: float | None
    """The smallest true difference that this study would claim with 80 % probability, at the first step of Holm; None
    with one seed, which can claim nothing."""
    seeds_needed: int | None
    """The number of seeds, as noisy as these, with which an undecided difference of this size could be claimed; None
    if it is decided, if no number would do, or with one seed."""
    seed_differences: tuple[float, ...] | None
    """The difference of each common seed; None without common seeds."""
    seed_deviation: float | None
    """Standard deviation over seeds of the difference of two runs; None with one seed."""
    example_error: float
    """Standard error of the difference over examples."""
    seeds: int
    """The number of runs of each variant that were compared; the smaller number if they are not paired."""
    paired: bool
    """Whether the runs are paired by seed."""
    seed_noise_known: bool
    """False with one seed: everything here then describes these trained models, not the recipes."""
    examples: int
    comparisons: int
    """The number of comparisons in the study, for Holm's correction."""


@dataclass(frozen=True)
class Verdict:
    """The scores of all variants of a study, and their comparisons with the reference."""

    reference: str
    scores: tuple[VariantScore, ...]
    comparisons: tuple[Comparison, ...]


def _finite(predicted: Array) -> Array:
    """Returns the predictions; all zeros for a run that diverged, as in the scores of single runs."""
    predicted = np.asarray(predicted)
    return predicted if np.isfinite(predicted).all() else np.zeros_like(predicted)
