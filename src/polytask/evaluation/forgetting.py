"""Old tasks before and after others were added: how far each has moved, with the interval of that. Knows no file."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polytask.evaluation.comparison.records import TaskData
from polytask.evaluation.evaluate import decided, measured
from polytask.evaluation.intervals import FEWER_RESAMPLES
from polytask.evaluation.metrics import CONFIDENCE, RESAMPLES, Metric, metrics_for
from polytask.evaluation.own_metrics import primary_of
from polytask.evaluation.comparison.verdict import judge
from polytask.heads.base import Head
from polytask.types import EvalReport, MetricValue, TaskSpec, TokenizedExamples, UserError

Array = NDArray[Any]
ROUNDING = 1e-9


@dataclass(frozen=True)
class OldTask:
    """One old task by its primary metric, on the same rows before and after."""

    metric: str
    examples: int
    before: MetricValue
    after: MetricValue
    difference: MetricValue
    """After minus before; its interval is over examples, paired."""
    identical: bool
    """All outputs are the same, to the last bit."""
    greater_is_better: bool = True
    """Of the metric."""

    def fell_by(self) -> float:
        """In points, hundredths of the metric; below 0 where it got better. A perplexity never counts."""
        if self.metric == "perplexity":
            return 0.0
        return -100 * self.difference.value if self.greater_is_better else 100 * self.difference.value

    def too_far(self, max_drop: float) -> bool:
        return self.fell_by() > max_drop + ROUNDING


def before_and_after(
    heads: Mapping[str, Head],
    splits: Mapping[str, TokenizedExamples],
    before: tuple[EvalReport, Mapping[str, Tensor]],
    after: tuple[EvalReport, Mapping[str, Tensor]],
    specs: Mapping[str, TaskSpec],
) -> dict[str, OldTask]:
    """Each task's scores and outputs before and after, compared."""
    found = {}
    for task, head in heads.items():
        scores = [report.tasks[task] for report, _ in (before, after)]
        one, other = before[1][task], after[1][task]
        same = torch.equal(one, other)
        was, now = (score.metrics[score.primary] for score in scores)
        moved = now.value - was.value
        ends = (moved, moved)
        if not same and scores[0].examples > 1:
            ends = _ends(head, splits[task], primary_of(specs[task]), one, other)
        found[task] = OldTask(
            metric=scores[0].primary,
            examples=scores[0].examples,
            before=was,
            after=now,
            difference=MetricValue(moved, *ends),
            identical=same,
            greater_is_better=scores[0].greater_is_better,
        )
    return found


def _ends(head: Head, split: TokenizedExamples, metric: Metric, before: Tensor, after: Tensor) -> tuple[float, float]:
    """Of the 95 % interval of the difference: what other rows of the same kind would make of it."""
    labels = head.labels
    if labels.kind == "text" or metric.name not in {entry.name for entry in metrics_for(labels.kind)}:
        return _resampled_ends(head, split, metric, before, after)
    rows = {name: decided(out, labels)[None] for name, out in (("before", before), ("after", after))}
    classes = max(2, len(labels.classes))
    (comparison,) = judge(
        [TaskData(head.task, labels.kind, classes, metric.name, split.labels, rows)], "before"
    ).comparisons
    return comparison.low, comparison.high


def _resampled_ends(
    head: Head, split: TokenizedExamples, metric: Metric, before: Tensor, after: Tensor
) -> tuple[float, float]:
    """A paired bootstrap, for metrics whose influence functions are not known here."""
    sides = [_columns(head, split, metric, outputs) for outputs in (before, after)]
    rng, rows = np.random.default_rng(0), len(sides[0][0])
    resamples = FEWER_RESAMPLES if metric.own else RESAMPLES
    drawn = []
    for _ in range(resamples):
        taken = rng.integers(0, rows, rows)
        try:
            was, now = (float(metric.function(*(column[taken] for column in columns))) for columns in sides)
        except UserError:  # a function of the user's own that has no value on these rows
            continue
        drawn.append(now - was)
    low, high = np.quantile(drawn, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2]).tolist()
    return low, high


def _columns(head: Head, split: TokenizedExamples, metric: Metric, outputs: Tensor) -> tuple[Array, Array]:
    gold, said, shares = measured(outputs, head, split.labels)
    if metric.columns is None:
        return gold, said
    assert shares is not None
    return metric.columns(gold, shares)
