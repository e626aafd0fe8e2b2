"""The verdict on a study: which variants differ from the reference, on which tasks, and by how much.

The statistics are in statistics.py, the records in records.py. Knows no files and no recipes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from polytask.evaluation.comparison.records import (
    LEVEL,
    MARGIN,
    MEAN,
    Claim,
    Comparison,
    TaskData,
    VariantScore,
    Verdict,
)
from polytask.evaluation.comparison.seed_noise import AnyNoise, shared
from polytask.evaluation.comparison.statistics import (
    Floats,
    Noise,
    Runs,
    holm,
    influence,
    interval,
    noise,
    swap_p,
    swapped,
)
from polytask.evaluation.comparison.views import Pair, View

POWER = 0.8
RESAMPLES = 9_999
MOST_SEEDS = 100
"""The largest number of seeds that is ever recommended."""


def judge(
    tasks: Sequence[TaskData],
    reference: str,
    seeds: Mapping[str, Sequence[int]] | None = None,
    resamples: int = RESAMPLES,
    seed: int = 0,
    margin: float = MARGIN,
) -> Verdict:
    """Scores every variant, and compares every other variant with the reference, on each task and on their mean.

    `seeds` holds the seed of each row of a variant's predictions; by default all variants have the same seeds. Two
    variants are compared on their common seeds; if they have fewer than two of them and each has two or more seeds,
    all their runs are compared, unpaired. With one task there is no mean; metrics that are better when lower count in
    the mean with a minus sign. Variants whose difference is surely smaller than `margin` (a fraction, not points) are
    called the same.
    """
    variants = _variants(tasks, reference)
    names = {variant: _seed_names(tasks, variant, seeds) for variant in variants}
    runs = {variant: [_runs(task, variant) for task in tasks] for variant in variants}
    views = _views(tasks)
    scores = tuple(_score(view, variant, view.of(runs[variant])) for variant in variants for view in views)
    others = [variant for variant in variants if variant != reference]
    if not others:
        return Verdict(reference, scores, ())
    family = len(others) * len(views)
    pairs = [_pair(runs, names, variant, reference) for variant in others]
    rng = np.random.default_rng(seed)
    swaps = [  # at least 100 for each comparison, otherwise no p value could be small enough for Holm's correction
        swapped(np.stack([pair.parts(view)[0] for pair in pairs]), max(resamples, 100 * family), rng)
        for view in views[: len(tasks)]
    ]
    own = [[_pair_noise(view, pair) for view in views] for pair in pairs]
    noises = [list(zip(*rows, strict=True)) for rows in zip(own, shared(own), strict=True)]
    comparisons = [
        _compare(view, pair, noises[i][j], _swapped_means(view, swaps, i), family, margin)
        for i, pair in enumerate(pairs)
        for j, view in enumerate(views)
    ]
    adjusted = holm([comparison.p for comparison in comparisons])
    return Verdict(reference, scores, tuple(_claimed(c, p) for c, p in zip(comparisons, adjusted, strict=True)))


# --- the steps --------------------------------------------------------------------------------------------------------


def _views(tasks: Sequence[TaskData]) -> list[View]:
    """Returns a view of each task and, with several tasks, of their mean."""
    views = [View(task.name, (task,), (t,), task.measure.greater_is_better) for t, task in enumerate(tasks)]
    return views + ([View(MEAN, tuple(tasks), tuple(range(len(tasks))), True)] if len(tasks) > 1 else [])


def _variants(tasks: Sequence[TaskData], reference: str) -> list[str]:
    if not tasks:
        raise ValueError("a study needs at least one task")
    if len({task.name for task in tasks}) < len(tasks):
        raise ValueError(f"two tasks have the same name; found {', '.join(task.name for task in tasks)}")
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
        raise ValueError(f"variant {variant}: the seeds {names} do not match the number of runs of each task, {counts}")
    return names


def _runs(task: TaskData, variant: str) -> Runs:
    metric = task.measure
    kind = np.float64 if task.kind == "score" else np.int64
    gold, predicted_SN = task.gold.astype(kind), task.predictions[variant].astype(kind)
    influences = [influence(metric, gold, predicted, task.classes) for predicted in predicted_SN]
    scores = [float(metric.function(gold, predicted)) for predicted in predicted_SN]
    return Runs(np.array(scores), np.stack(influences))


def _pair(runs: Mapping[str, list[Runs]], names: Mapping[str, list[int]], variant: str, reference: str) -> Pair:
    one, two = names[variant], names[reference]
    common = [name for name in one if name in two]
    if not common or (len(common) < 2 <= min(len(one), len(two))):
        return Pair(variant, reference, (runs[variant], runs[reference]), paired=False)
    first = [task_runs[[one.index(name) for name in common]] for task_runs in runs[variant]]
    second = [task_runs[[two.index(name) for name in common]] for task_runs in runs[reference]]
    return Pair(variant, reference, (first, second), paired=True)


def _score(view: View, variant: str, runs: list[Runs]) -> VariantScore:
    values_S = np.mean([task_runs.scores_S for task_runs in runs], axis=0)
    half = noise([runs], [task.counted for task in view.tasks]).half_width(LEVEL)
    mean = float(values_S.mean())
    ends = interval(mean, half, *view.range, float(np.mean([task.shrink for task in view.tasks])))
    deviation = float(values_S.std(ddof=1)) if len(values_S) > 1 else None
    return VariantScore(variant, view.name, mean, *ends, deviation, tuple(values_S.tolist()), view.examples)


def _pair_noise(view: View, pair: Pair) -> Noise:
    return noise(pair.groups(view), [2 * task.counted for task in view.tasks])


def _swapped_means(view: View, swaps: Sequence[Floats], pair: int) -> Floats:
    """Returns the difference of one pair in every resample."""
    signed = [sign * swaps[t][:, pair] for t, sign in zip(view.indices, view.signs, strict=True)]
    means: Floats = np.mean(signed, axis=0)
    return means


def _compare(
    view: View,
    pair: Pair,
    noises: tuple[Noise, AnyNoise],
    swaps: Floats,
    family: int,
    margin: float,
) -> Comparison:
    """Compares one pair in one view; `noises` are its own noise, and the same with the study's other comparisons."""
    own, known = noises
    parts = pair.parts(view)
    difference = float(np.mean([part.mean() for part in parts]))
    half, width = own.half_width(LEVEL), view.range[1] - view.range[0]
    many = bool(own.seeds)  # with one seed, seed noise is unknown, and nothing can be claimed
    p_study, p_swap = known.p_value(difference) if many else 1.0, swap_p(difference, swaps)
    seeds = min(len(side[0].scores_S) for side in pair.sides)
    return Comparison(
        variant=pair.variant,
        reference=pair.reference,
        task=view.name,
        difference=difference,
        low=max(difference - half, -width),
        high=min(difference + half, width),
        p_noise=own.p_value(difference),
        p_study=p_study,
        p_swap=p_swap,
        p=max(p_study, p_swap),
        p_holm=1.0,
        p_same=_p_same(own, margin - abs(difference), family),
        margin=margin,
        claim="undecided",
        greater_is_better=view.greater_is_better,
        effect_seeds=_effect_seeds(pair, view, difference),
        effect_examples=float(np.mean([_ratio(part.mean(), part.std(ddof=1)) or 0.0 for part in parts])),
        detectable=min(known.half_width(LEVEL / family) + own.half_width(2 * (1 - POWER)), width) if many else None,
        seeds_needed=seeds_needed(known, difference, seeds, family) if many else None,
        seed_differences=_seed_differences(pair, view),
        seed_deviation=float(np.sqrt(sum(v * (d + 1) for v, d in own.seeds))) if many else None,
        example_error=float(np.sqrt(own.examples)),
        seeds=seeds,
        paired=pair.paired,
        seed_noise_known=many,
        examples=view.examples,
        comparisons=family,
    )


def _p_same(own: Noise, room: float, family: int) -> float:
    """Returns the p value of two one-sided tests (Schuirmann 1987); the nearer end of the margin is `room` away.

    Each test has half the level, so that two variants are the same if the two-sided interval lies within the margin.
    With the whole level, up to 6.7 % of simulated studies at the edge of the margin were called the same.
    """
    return min(1.0, family * own.p_value(room)) if own.seeds and room > 0 else 1.0


def _seed_differences(pair: Pair, view: View) -> tuple[float, ...] | None:
    if not pair.paired:
        return None
    (group,) = pair.groups(view)
    values: list[float] = np.mean([runs.scores_S for runs in group], axis=0).tolist()
    return tuple(values)


def seeds_needed(known: AnyNoise, difference: float, seeds: int, family: int) -> int | None:
    """Returns the fewest seeds, as noisy as these, with which a difference of this size would be claimed."""
    for more in range(seeds + 1, MOST_SEEDS + 1):
        if known.with_seeds(more).half_width(LEVEL / family) <= abs(difference):
            return more
    return None


def _effect_seeds(pair: Pair, view: View, difference: float) -> float | None:
    values = [np.mean([runs.scores_S for runs in view.of(side)], axis=0) for side in pair.sides]
    if any(len(value) < 2 for value in values):
        return None
    return _ratio(difference, float(np.sqrt(np.mean([value.var(ddof=1) for value in values]))))


def _ratio(above: float, below: float) -> float | None:
    return float(above / below) if below > 1e-12 else None


def _claimed(comparison: Comparison, p_holm: float) -> Comparison:
    claim: Claim = "undecided"
    if p_holm <= LEVEL:
        claim = "better" if (comparison.difference > 0) == comparison.greater_is_better else "worse"
    elif comparison.p_same <= LEVEL:
        claim = "same"
    needed = comparison.seeds_needed if claim == "undecided" else None
    return replace(comparison, p_holm=p_holm, claim=claim, seeds_needed=needed)
