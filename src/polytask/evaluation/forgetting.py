"""Compares old tasks before and after others were added: how far each score moved, with an interval. Knows no file."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polytask.evaluation.comparison.records import TaskData
from polytask.evaluation.comparison.verdict import judge
from polytask.evaluation.evaluate import predictions_of
from polytask.evaluation.intervals import CONFIDENCE, FEWER_RESAMPLES, RESAMPLES
from polytask.evaluation.metrics import Metric, metrics_for
from polytask.evaluation.own_metrics import primary_of
from polytask.heads.base import Head
from polytask.settings import TaskSpec
from polytask.types import EvalReport, MetricValue, UserError

Array = NDArray[Any]
ROUNDING = 1e-9  # a drop of exactly `max_drop` is allowed


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
    """Whether all outputs are bit-identical, and interpreted with the same thresholds."""
    greater_is_better: bool = True
    """Whether a higher value of the metric is better."""

    def fell_by(self) -> float:
        """Returns the drop in points (hundredths of the metric), negative for a gain; 0 for a perplexity."""
        if self.metric == "perplexity":
            return 0.0
        return -100 * self.difference.value if self.greater_is_better else 100 * self.difference.value

    def too_far(self, max_drop: float | None) -> bool:
        """Whether it dropped by more points than are allowed; None allows any number."""
        return max_drop is not None and self.fell_by() > max_drop + ROUNDING


def before_and_after(
    heads: Mapping[str, Head],
    labels: Mapping[str, Array],
    before: tuple[EvalReport, Mapping[str, Tensor]],
    after: tuple[EvalReport, Mapping[str, Tensor]],
    specs: Mapping[str, TaskSpec],
    new_heads: Mapping[str, Head] | None = None,
) -> dict[str, OldTask]:
    """Compares each task's scores and outputs before and after, given the labels of the same rows.

    `new_heads` interpret the outputs after, where they differ from `heads`, such as in their thresholds.
    """
    compared = {}
    for task, head in heads.items():
        scores = [report.tasks[task] for report, _ in (before, after)]
        one, other = before[1][task], after[1][task]
        after_head = (new_heads or heads)[task]
        same = torch.equal(one, other) and head.labels == after_head.labels
        was, now = (score.metrics[score.primary] for score in scores)
        moved = now.value - was.value
        ends = (moved, moved)
        if not same and scores[0].examples > 1:
            ends = _ends((head, after_head), labels[task], primary_of(specs[task], head.labels), one, other)
        compared[task] = OldTask(
            metric=scores[0].primary,
            examples=scores[0].examples,
            before=was,
            after=now,
            difference=MetricValue(moved, *ends),
            identical=same,
            greater_is_better=scores[0].greater_is_better,
        )
    return compared


def _ends(heads: tuple[Head, Head], gold: Array, metric: Metric, before: Tensor, after: Tensor) -> tuple[float, float]:
    """Returns the 95 % interval of the difference over examples."""
    head, labels = heads[0], heads[0].labels
    if not head.kind.has_predictions or metric.name not in {entry.name for entry in metrics_for(labels.kind)}:
        return _resampled_ends(heads, gold, metric, before, after)
    sides = zip(heads, (before, after), strict=True)
    pairs = [one.kind.compared(gold, one.kind.predicted(outputs, one.labels), one.labels) for one, outputs in sides]
    rows = {name: predicted[None] for name, (_, predicted) in zip(("before", "after"), pairs, strict=True)}
    classes = max(2, len(labels.classes))
    data = TaskData(head.task, labels.kind, classes, metric.name, pairs[0][0], rows)
    (comparison,) = judge([data], "before").comparisons
    return comparison.low, comparison.high


def _resampled_ends(
    heads: tuple[Head, Head], gold: Array, metric: Metric, before: Tensor, after: Tensor
) -> tuple[float, float]:
    """Returns the interval of a paired bootstrap, for metrics without a known influence function."""
    both = zip(heads, (before, after), strict=True)
    sides = [predictions_of(outputs, head, gold).columns(metric) for head, outputs in both]
    rng, rows = np.random.default_rng(0), len(sides[0][0])
    resamples = FEWER_RESAMPLES if metric.own else RESAMPLES
    drawn = []
    for _ in range(resamples):
        taken = rng.integers(0, rows, rows)
        try:
            was, now = (float(metric.function(*(column[taken] for column in columns))) for columns in sides)
        except UserError:  # a user's function that is undefined on these rows
            continue
        drawn.append(now - was)
    low, high = np.quantile(drawn, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2]).tolist()
    return low, high
