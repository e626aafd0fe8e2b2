"""Sentences about what training did not improve."""

from dataclasses import replace
from typing import Any

import pytest

from polytask.reports.remarks import compare_with, remarks
from polytask.types import EvalReport, MetricValue, TaskScore


@pytest.mark.parametrize(
    ("low", "high", "greater", "expected"),
    [
        (0.6, 0.8, True, "better"),
        (0.6, 0.8, False, "worse"),
        (0.1, 0.3, True, "worse"),
        (0.1, 0.3, False, "better"),
        (0.4, 0.6, True, "no clear difference"),
    ],
)
def test_a_verdict_needs_the_whole_interval(low: float, high: float, greater: bool, expected: str) -> None:
    assert compare_with({"low": low, "high": high}, 0.5, greater) == expected


def report(step: int, value: float, low: float, high: float, **baselines: Any) -> EvalReport:
    return EvalReport(step, "dev", {"t": TaskScore(0.3, {"f1": MetricValue(value, low, high)}, "f1", 90)}, baselines)


def test_remarks_say_what_training_did_not_improve() -> None:
    simple = {"metric": "f1", "value": 0.6, "what": "the 10 nearest"}
    start = report(0, 0.751, 0.7, 0.8, t=simple)
    (sentence,) = remarks(report(80, 0.773, 0.71, 0.83), start, "mean")
    assert sentence == ("t: f1 0.773 [0.710, 0.830] is not clearly better than the model at step 0 (0.751).")
    better, worse, unclear = remarks(report(80, 0.6, 0.55, 0.65), start, "mean")
    assert better == (
        "The model at step 0 scored better on dev, by the mean of the tasks, than the best checkpoint (step 80): "
        "0.751 before training, 0.600 after."
    )
    assert worse.startswith("t: f1 0.600 [0.550, 0.650] is worse than the model at step 0 (0.751).")
    assert unclear.endswith("is not clearly better than the 10 nearest (0.600).")
    assert not remarks(report(80, 0.9, 0.88, 0.92), start, "mean")
    assert len(remarks(report(80, 0.6, 0.55, 0.65), start, "last")) == 2  # no best checkpoint to speak of


def test_remarks_compare_the_tasks_that_both_reports_have() -> None:
    start, trained = report(0, 0.7, 0.6, 0.8), report(80, 0.9, 0.88, 0.92)
    old = TaskScore(0.3, {"f1": MetricValue(0.2, 0.1, 0.3)}, "f1", 90)
    assert not remarks(replace(trained, tasks={**trained.tasks, "old": old}), start, "mean")
