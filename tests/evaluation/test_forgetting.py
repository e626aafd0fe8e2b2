"""The interval of a difference agrees with a paired bootstrap, and the gate has the right threshold."""

from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from polytask.evaluation.forgetting import OldTask, before_and_after
from polytask.evaluation.metrics import metrics_for
from polytask.evaluation.scoring import Predictions, score
from polytask.heads.base import Head, TextHead
from polytask.kinds.table import KINDS
from polytask.settings import TaskSpec
from polytask.stream import Encoded
from polytask.types import YES_NO, EvalReport, LabelSpace, MetricValue

CLASSES = LabelSpace("classes", ("a", "b", "c"))
SCORE = LabelSpace("score", low=0.0, high=5.0)


class Silent(Head):
    """Its outputs are made by the tests."""

    def forward(self, encoded: Encoded) -> Tensor:
        raise NotImplementedError


class SilentText(TextHead, Silent):
    def surprise(self, outputs: Tensor) -> Tensor:
        return outputs

    def uninformed_outputs(self, labels: Tensor) -> Tensor:
        raise NotImplementedError


def compared(head: Head, gold: Any, before: Tensor, after: Tensor, metric: str | None = None) -> OldTask:
    def report(outputs: Tensor) -> EvalReport:
        true, said = gold, None
        if isinstance(head, TextHead):
            said, true = outputs.double().numpy().T
        else:
            said = head.kind.predicted(outputs, head.labels)
        return EvalReport(0, "dev", {"task": score(Predictions(np.asarray(true), said), head.labels, 0.0, metric)})

    spec = TaskSpec("task", head.labels.kind, ("text",), "label", "train.csv", "dev.csv", metric=metric)
    sides = ((report(outputs), {"task": outputs}) for outputs in (before, after))
    return before_and_after({"task": head}, {"task": np.asarray(gold)}, *sides, {"task": spec})["task"]


@pytest.mark.parametrize(("kind", "metric"), [("classes", "accuracy"), ("classes", "f1"), ("score", "pearson")])
def test_the_interval_of_a_difference_is_that_of_pairs(kind: str, metric: str) -> None:
    """Two models that mostly agree differ by far less than the noise of either alone."""
    rng = np.random.default_rng(3)
    n = 1500
    if kind == "classes":
        gold = rng.integers(0, 3, n)
        right = torch.nn.functional.one_hot(torch.from_numpy(gold), 3).float()
        before = right + torch.from_numpy(rng.normal(0, 1, (n, 3))).float()
    else:
        gold = rng.uniform(0, 1, n).astype(np.float32)
        before = (torch.from_numpy(gold) + torch.from_numpy(rng.normal(0, 0.15, n)).float()).clamp(0, 1)
    after = before + torch.from_numpy(rng.normal(0, 0.3 if kind == "classes" else 0.05, before.shape)).float()
    labels = CLASSES if kind == "classes" else SCORE
    found = compared(Silent("task", labels), gold, before, after, metric)

    function = next(m for m in metrics_for(labels.kind) if m.name == metric).function

    def statistic(rows: Any) -> float:
        was, now = (
            function(gold[rows], KINDS[labels.kind].predicted(outputs, labels)[rows]) for outputs in (before, after)
        )
        return float(now - was)

    drawn = [statistic(rng.integers(0, n, n)) for _ in range(200)]
    low, high = np.quantile(drawn, [0.025, 0.975])
    width = high - low
    assert found.difference.value == pytest.approx(statistic(np.arange(n)))
    assert found.difference.low == pytest.approx(low, abs=0.2 * width)
    assert found.difference.high == pytest.approx(high, abs=0.2 * width)
    assert found.difference.high - found.difference.low < 0.8 * (found.before.high - found.before.low)
    assert not found.identical


def test_what_is_the_same_to_the_bit_has_not_moved() -> None:
    out = torch.linspace(-1, 1, 40)
    found = compared(Silent("task", YES_NO), np.tile([0.0, 1.0], 20), out, out.clone())
    assert found.identical
    assert found.difference == MetricValue(0.0, 0.0, 0.0)
    nudged = compared(Silent("task", YES_NO), np.tile([0.0, 1.0], 20), out, torch.nextafter(out, out + 1))
    assert not nudged.identical
    assert nudged.difference.low < 0 < nudged.difference.high  # agreeing on forty rows is no proof


def test_one_row_has_no_interval() -> None:
    found = compared(Silent("task", YES_NO), np.array([1.0]), torch.tensor([2.0]), torch.tensor([-2.0]))
    assert found.difference == MetricValue(-1.0, -1.0, -1.0)


def test_perplexity_in_pairs() -> None:
    rng = np.random.default_rng(0)
    asked = rng.integers(1, 9, 400).astype(float)
    was = asked * rng.uniform(1, 5, 400)
    now = was + asked * rng.normal(0.1, 0.02, 400)
    before, after = (torch.from_numpy(np.stack([surprise, asked], -1)) for surprise in (was, now))
    head = SilentText("task", LabelSpace("text", vocabulary=9))
    found = compared(head, np.zeros(400), before, after)
    assert found.difference.value == pytest.approx(np.exp(now.sum() / asked.sum()) - np.exp(was.sum() / asked.sum()))
    reference = stats.bootstrap(
        (was, now, asked),
        lambda w, n, a: np.exp(n.sum() / a.sum()) - np.exp(w.sum() / a.sum()),
        n_resamples=500,
        vectorized=False,
        paired=True,
        method="percentile",
        rng=np.random.default_rng(1),
    ).confidence_interval
    width = reference.high - reference.low
    assert found.difference.low == pytest.approx(reference.low, abs=0.2 * width)
    assert found.difference.high == pytest.approx(reference.high, abs=0.2 * width)
    assert found.fell_by() == 0.0
    assert not found.too_far(0.0)


def test_a_fall_of_exactly_the_gate_is_allowed() -> None:
    def old(before: float, after: float) -> OldTask:
        was, now, moved = (MetricValue(value, value, value) for value in (before, after, after - before))
        return OldTask("accuracy", 100, was, now, moved, identical=False)

    assert 100 * (0.66 - 0.65) > 1.0  # what rounding makes of it
    assert not old(0.66, 0.65).too_far(1.0)
    assert old(0.66, 0.64).too_far(1.0)
    assert old(0.66, 0.64).fell_by() == pytest.approx(2.0)
    assert not old(0.64, 0.66).too_far(0.0)


def test_a_model_that_diverged_can_be_compared() -> None:
    gold = np.linspace(0, 1, 30).astype(np.float32)
    found = compared(Silent("task", SCORE), gold, torch.from_numpy(gold), torch.full((30,), float("nan")))
    assert found.after.value == 0.0
    assert found.too_far(50.0)
    assert np.isfinite([found.difference.low, found.difference.high]).all()
