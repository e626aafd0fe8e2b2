"""Old tasks before and after others were added: how far each has moved, with the interval of that. Knows no file."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor

from polytask.evaluation.comparisons import TaskData
from polytask.evaluation.evaluate import decided
from polytask.evaluation.metrics import BATCH_NUMBERS, CONFIDENCE, RESAMPLES, metrics_for
from polytask.evaluation.verdict import judge
from polytask.heads.base import Head, TextHead
from polytask.types import EvalReport, MetricValue, TokenizedExamples

Floats = NDArray[np.float64]
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
    """False for plain text, whose perplexity no gate looks at."""

    def fell_by(self) -> float:
        """In points, hundredths of the metric; below 0 where it rose."""
        return -100 * self.difference.value if self.greater_is_better else 0.0

    def too_far(self, max_drop: float) -> bool:
        return self.fell_by() > max_drop + ROUNDING


def before_and_after(
    heads: Mapping[str, Head],
    splits: Mapping[str, TokenizedExamples],
    before: tuple[EvalReport, Mapping[str, Tensor]],
    after: tuple[EvalReport, Mapping[str, Tensor]],
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
            ends = _ends(head, splits[task], scores[0].primary, one, other)
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


def _ends(head: Head, split: TokenizedExamples, metric: str, before: Tensor, after: Tensor) -> tuple[float, float]:
    """Of the 95 % interval of the difference: what other rows of the same kind would make of it."""
    if isinstance(head, TextHead):
        return _text_ends(head.surprise(before).double().numpy(), head.surprise(after).double().numpy(), metric)
    labels = head.labels
    rows = {name: decided(out, labels)[None] for name, out in (("before", before), ("after", after))}
    classes = max(2, len(labels.classes))
    (comparison,) = judge([TaskData(head.task, labels.kind, classes, metric, split.labels, rows)], "before").comparisons
    return comparison.low, comparison.high


def _text_ends(before_B2: Floats, after_B2: Floats, metric: str) -> tuple[float, float]:
    """A paired bootstrap: perplexities have no influence functions here."""
    perplexity = next(m for m in metrics_for("text") if m.name == metric).function

    def difference(was: Floats, now: Floats, asked: Floats, axis: int = -1) -> Floats:
        return perplexity(asked, now) - perplexity(asked, was)

    result = stats.bootstrap(
        (before_B2[:, 0], after_B2[:, 0], before_B2[:, 1]),
        difference,
        n_resamples=RESAMPLES,
        batch=max(1, BATCH_NUMBERS // len(before_B2)),
        vectorized=True,
        paired=True,
        confidence_level=CONFIDENCE,
        method="percentile",
        rng=np.random.default_rng(0),
    )
    low, high = result.confidence_interval
    return float(low), float(high)
