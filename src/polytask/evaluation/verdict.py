"""The verdict on a study: which variants differ from the reference, on which tasks, by how much, in plain words.

The statistics are in statistics.py. Knows labels and predictions as arrays, not files or recipes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from polytask.evaluation.metrics import CONFIDENCE, Metric, check_metric, metrics_for
from polytask.evaluation.statistics import Floats, Runs, holm, influence, interval, noise, swap_p, swapped
from polytask.types import LabelKind

Array = NDArray[Any]
Claim = Literal["better", "worse", "none seen"]

MEAN = "mean"
"""Stands in a record's `task` for the mean of the tasks' primary metrics."""
LEVEL = 1 - CONFIDENCE
POWER = 0.8
RESAMPLES = 9_999
HOPELESS = 0.3  # a number of points beyond this would only puzzle: the study is too small, mostly in seeds


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
        rows = {variant: np.stack([np.asarray(said) for _, said in pairs]) for variant, pairs in runs.items()}
        return cls(name, kind, classes, metric, golds[0][1], rows)

    @property
    def measure(self) -> Metric:
        return next(metric for metric in metrics_for(self.kind) if metric.name == self.metric)

    @property
    def range(self) -> tuple[float, float]:
        """The lowest and the highest value that the metric can have."""
        return (0.0 if self.metric in ("accuracy", "f1") else -1.0), 1.0

    @property
    def counted(self) -> float:
        """The squared width of the range; 0 for scores (see `statistics.noise`)."""
        return 0.0 if self.kind == "score" else (self.range[1] - self.range[0]) ** 2

    @property
    def shrink(self) -> float:
        """See `statistics.interval`."""
        return 1.0 if self.kind == "score" else len(self.gold) / (len(self.gold) + 2)


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
    """At which the interval reaches 0: examples and seeds."""
    p_swap: float
    """Of the permutation test that swaps the variants in random examples: examples only, but no assumption."""
    p: float
    """The larger of the two."""
    p_holm: float
    """Adjusted for all comparisons of the study."""
    claim: Claim
    """What can be said with at most 5 % risk of any false claim in the whole study."""
    effect_seeds: float | None
    """Cohen's d over runs: difference / root mean square of the two standard deviations over seeds; None without."""
    effect_examples: float
    """Difference / standard deviation over examples of its parts (mean over tasks: of the tasks' effects)."""
    detectable: float
    """The smallest true difference that this study would claim with 80 % probability, at the first step of Holm."""
    seeds: int
    """Runs of each variant that took part; the smaller number if they are not paired."""
    paired: bool
    """By seed."""
    seed_noise_known: bool
    """False: one seed, and everything here speaks of these trained models, not of the recipes."""
    examples: int
    comparisons: int
    """In the study, for Holm."""


@dataclass(frozen=True)
class Verdict:
    """Everything that can be said about a study."""

    reference: str
    scores: tuple[VariantScore, ...]
    comparisons: tuple[Comparison, ...]


def judge(
    tasks: Sequence[TaskData],
    reference: str,
    seeds: Mapping[str, Sequence[int]] | None = None,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Verdict:
    """Every variant's scores, and every other variant against the reference, on each task and on their mean.

    `seeds` names the seed of each row of a variant's predictions; left out: all variants have the same seeds. Two
    variants are compared on the seeds they have in common; where they share fewer than two and each has two or more,
    all their runs are compared, unpaired. With one task the mean is left out, for it would say the same again.
    """
    variants = _variants(tasks, reference)
    names = {variant: _seed_names(tasks, variant, seeds) for variant in variants}
    runs = {variant: [_runs(task, variant) for task in tasks] for variant in variants}
    views = [[t] for t in range(len(tasks))] + ([list(range(len(tasks)))] if len(tasks) > 1 else [])
    scores = tuple(_score(tasks, view, variant, runs[variant]) for variant in variants for view in views)
    others = [variant for variant in variants if variant != reference]
    if not others:
        return Verdict(reference, scores, ())
    family = len(others) * len(views)
    pairs = [_pair(runs, names, variant, reference) for variant in others]
    rng = np.random.default_rng(seed)
    swaps = [  # at least 100 for each comparison, or Holm could never be passed
        swapped(np.stack([pair.parts(t) for pair in pairs]), max(resamples, 100 * family), rng)
        for t in range(len(tasks))
    ]
    found = [
        _compare(tasks, view, pair, np.mean([swaps[t][:, place] for t in view], axis=0), family)
        for place, pair in enumerate(pairs)
        for view in views
    ]
    adjusted = holm([comparison.p for comparison in found])
    return Verdict(reference, scores, tuple(_claimed(c, p) for c, p in zip(found, adjusted, strict=True)))


def sentence(comparison: Comparison) -> str:
    """The comparison in plain words, in points (hundredths of the metric)."""
    c = comparison
    where = "the mean of the tasks" if c.task == MEAN else c.task
    ends = f"[{_points(c.low)}, {_points(c.high)}]"
    if c.claim != "none seen":
        low, high = (c.low, c.high) if c.claim == "better" else (-c.high, -c.low)
        text = f"{c.variant} is {c.claim} than {c.reference} on {where} by {_points(abs(c.difference))} points"
        text += f" [{_points(low)}, {_points(high)}]"
    elif c.detectable == 0.0:
        text = f"no difference seen between {c.variant} and {c.reference} on {where}; their predictions are the same"
    else:
        sets = "dev sets" if c.task == MEAN else "a dev set"
        seeds = "1 seed" if c.seeds == 1 else f"{c.seeds} seeds"
        text = f"no difference seen between {c.variant} and {c.reference} on {where}; {sets} of {c.examples:,} examples"
        least = f"less than about {_points(c.detectable)} points" if c.detectable < HOPELESS else "any usual difference"
        text += f" with {seeds} cannot see {least}"
        if c.p <= LEVEL:
            text += f" (alone, {_points(c.difference)} points {ends} would count; among {c.comparisons} it does not)"
    return text if c.seed_noise_known else f"{text} (one seed: seed noise is unknown)"


def _points(value: float) -> str:
    return f"{100 * value + 0.0:.1f}".replace("-0.0", "0.0")


# --- the steps --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Pair:
    """A variant and the reference, as far as their seeds can be compared."""

    variant: str
    reference: str
    sides: tuple[list[Runs], list[Runs]]
    """For each task, the runs that take part."""
    paired: bool

    @property
    def groups(self) -> list[list[Runs]]:
        first, second = self.sides
        if self.paired:
            return [[a - b for a, b in zip(first, second, strict=True)]]
        return [first, [Runs(-runs.scores_S, -runs.pulls_SN) for runs in second]]

    def parts(self, task: int) -> Floats:
        """[N]: the part of each example in the difference on a task; the mean is the difference."""
        first, second = (side[task] for side in self.sides)
        difference = first.scores_S.mean() - second.scores_S.mean()
        parts_N: Floats = difference + first.pulls_SN.mean(0) - second.pulls_SN.mean(0)
        return parts_N


def _variants(tasks: Sequence[TaskData], reference: str) -> list[str]:
    if not tasks:
        raise ValueError("a study needs at least one task")
    if len({task.name for task in tasks}) < len(tasks):
        raise ValueError(f"two tasks have the same name: {', '.join(task.name for task in tasks)}")
    variants = list(tasks[0].predictions)
    for task in tasks:
        if set(task.predictions) != set(variants):
            raise ValueError(
                f"task {task.name} has the variants {', '.join(task.predictions)};"
                f" task {tasks[0].name} has {', '.join(variants)}"
            )
    if reference not in variants:
        raise ValueError(f"the reference {reference!r} is not one of the variants: {', '.join(variants)}")
    return variants


def _seed_names(tasks: Sequence[TaskData], variant: str, seeds: Mapping[str, Sequence[int]] | None) -> list[int]:
    counts = {task.name: len(task.predictions[variant]) for task in tasks}
    names = list(range(counts[tasks[0].name])) if seeds is None else list(seeds[variant])
    if any(count != len(names) for count in counts.values()) or len(set(names)) < len(names):
        raise ValueError(f"variant {variant}: the seeds {names} do not name the runs of each task: {counts}")
    return names


def _runs(task: TaskData, variant: str) -> Runs:
    metric = task.measure
    assert metric.greater_is_better  # else "better" would have to be turned round
    kind = np.float64 if task.kind == "score" else np.int64
    gold, predicted_SN = task.gold.astype(kind), task.predictions[variant].astype(kind)
    pulls = [influence(metric, gold, predicted, task.classes) for predicted in predicted_SN]
    scores = [float(metric.function(gold, predicted)) for predicted in predicted_SN]
    return Runs(np.array(scores), np.stack(pulls))


def _pair(runs: Mapping[str, list[Runs]], names: Mapping[str, list[int]], variant: str, reference: str) -> _Pair:
    one, two = names[variant], names[reference]
    common = [name for name in one if name in two]
    if not common or (len(common) < 2 <= min(len(one), len(two))):
        return _Pair(variant, reference, (runs[variant], runs[reference]), paired=False)
    first = [task_runs[[one.index(name) for name in common]] for task_runs in runs[variant]]
    second = [task_runs[[two.index(name) for name in common]] for task_runs in runs[reference]]
    return _Pair(variant, reference, (first, second), paired=True)


def _view(tasks: Sequence[TaskData], view: list[int]) -> tuple[str, int, float, float]:
    """Name, examples, lowest and highest value of one task or of the mean of several."""
    chosen = [tasks[t] for t in view]
    low, high = np.mean([task.range for task in chosen], axis=0).tolist()
    return chosen[0].name if len(view) == 1 else MEAN, sum(len(task.gold) for task in chosen), low, high


def _score(tasks: Sequence[TaskData], view: list[int], variant: str, runs: list[Runs]) -> VariantScore:
    name, examples, low, high = _view(tasks, view)
    values_S = np.mean([runs[t].scores_S for t in view], axis=0)
    half = noise([[runs[t] for t in view]], [tasks[t].counted for t in view]).half_width(LEVEL)
    mean = float(values_S.mean())
    ends = interval(mean, half, low, high, float(np.mean([tasks[t].shrink for t in view])))
    deviation = float(values_S.std(ddof=1)) if len(values_S) > 1 else None
    return VariantScore(variant, name, mean, *ends, deviation, tuple(values_S.tolist()), examples)


def _compare(tasks: Sequence[TaskData], view: list[int], pair: _Pair, swaps: Floats, family: int) -> Comparison:
    name, examples, low, high = _view(tasks, view)
    known = noise([[group[t] for t in view] for group in pair.groups], [2 * tasks[t].counted for t in view])
    parts = [pair.parts(t) for t in view]
    difference = float(np.mean([part.mean() for part in parts]))
    half, width = known.half_width(LEVEL), high - low
    p_noise, p_swap = known.p_value(difference), swap_p(difference, swaps)
    return Comparison(
        variant=pair.variant,
        reference=pair.reference,
        task=name,
        difference=difference,
        low=max(difference - half, -width),
        high=min(difference + half, width),
        p_noise=p_noise,
        p_swap=p_swap,
        p=max(p_noise, p_swap),
        p_holm=1.0,
        claim="none seen",
        effect_seeds=_effect_seeds(pair, view, difference),
        effect_examples=float(np.mean([_ratio(part.mean(), part.std(ddof=1)) or 0.0 for part in parts])),
        detectable=min(known.detectable(LEVEL / family, POWER), width),
        seeds=min(len(side[0].scores_S) for side in pair.sides),
        paired=pair.paired,
        seed_noise_known=bool(known.seeds),
        examples=examples,
        comparisons=family,
    )


def _effect_seeds(pair: _Pair, view: list[int], difference: float) -> float | None:
    values = [np.mean([side[t].scores_S for t in view], axis=0) for side in pair.sides]
    if any(len(value) < 2 for value in values):
        return None
    return _ratio(difference, float(np.sqrt(np.mean([value.var(ddof=1) for value in values]))))


def _ratio(above: float, below: float) -> float | None:
    return float(above / below) if below > 1e-12 else None


def _claimed(comparison: Comparison, p_holm: float) -> Comparison:
    claim: Claim = "none seen"
    if p_holm <= LEVEL:
        claim = "better" if comparison.difference > 0 else "worse"
    return replace(comparison, p_holm=p_holm, claim=claim)
