"""Tasks one after another in the loop: scored before the first stage and after each, and the last weights kept."""

import itertools
import json
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from polytask.training.averages import RunningAverage
from polytask.training.checkpoint import newest, step_of
from polytask.training.loop import Session
from polytask.types import EvalReport, MetricValue

OPTIONS: dict[str, Any] = {"sampler": "in_order", "select": "last", "save_every": 5}


def lines(session: Session) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in session.journal.path.read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "seconds"} for line in found]


def evaluated(session: Session) -> list[int]:
    return [line["step"] for line in lines(session) if line["kind"] == "evaluation"]


def weights(session: Session) -> dict[str, Tensor]:
    return {key: tensor.clone() for key, tensor in session.model.state_dict().items()}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


def test_every_stage_ends_with_an_evaluation_and_one_comes_first(make_session: Any) -> None:
    """40 and 20 examples over 12 steps: the first task has 8 of them."""
    session = make_session(**OPTIONS)
    before = session.evaluate(0)
    reports = list(session.fit())
    assert [list(report.losses) for report in reports] == [["one"]] * 8 + [["two"]] * 4
    assert evaluated(session) == [0, 6, 8, 12]  # 6: an epoch
    assert [report.step for report in reports if report.evaluation is not None] == [6, 8, 12]
    assert lines(session)[0]["tasks"]["two"]["loss"] == before.tasks["two"].loss
    assert evaluated(make_like(make_session, "proportional")) == [0, 6, 12]


def make_like(make_session: Any, sampler: str) -> Session:
    session: Session = make_session(sampler, sampler=sampler)
    list(session.fit())
    return session


@pytest.mark.parametrize("stop", [1, 3, 8, 11])
def test_a_stopped_sequence_ends_with_the_same_bits_and_lines(make_session: Any, stop: int) -> None:
    straight, stopped = make_session("straight", **OPTIONS), make_session("stopped", **OPTIONS)
    list(straight.fit())
    list(itertools.islice(stopped.fit(), stop))
    checkpoint = newest(stopped.checkpoints)
    resumed = make_session("stopped", resumed_at=step_of(checkpoint) if checkpoint else 0, **OPTIONS)
    if checkpoint is not None:
        resumed.load(checkpoint)
    list(resumed.fit())
    assert lines(resumed) == lines(straight)  # the evaluation before the first step among them, once
    for session in (resumed, straight):
        session.load_best()
    assert same(weights(resumed), weights(straight))


def falling(report: EvalReport) -> EvalReport:
    """The same with scores that get worse with every step."""
    value = MetricValue(1 / (1 + report.step), 0.0, 1.0)
    return replace(report, tasks={t: replace(s, metrics={**s.metrics, s.primary: value}) for t, s in report})


def test_the_last_weights_are_kept_whatever_they_score(make_session: Any) -> None:
    """A sequence's mean over tasks is often best in the middle."""
    session = make_session(**OPTIONS, evaluate_every=1)
    plain = session.evaluate
    session.evaluate = lambda step: falling(plain(step))
    reports = list(session.fit())
    last = weights(session)
    assert not any(report.best for report in reports)
    assert not any(line.get("best") for line in lines(session))
    with torch.no_grad():
        for parameter in session.model.parameters():
            parameter.zero_()
    session.load_best()
    assert session.best_step == 12
    assert same(weights(session), last)
    again = make_session(resumed_at=12, **OPTIONS)  # a run that was killed between its last step and its end
    again.load(newest(session.checkpoints))
    assert list(again.fit()) == []
    again.load_best()
    assert same(weights(again), last)


def test_with_a_running_average_the_last_average_is_kept(make_session: Any) -> None:
    session = make_session(**OPTIONS, ema=0.9)
    session.average = RunningAverage(session.model, 0.9)
    list(session.fit())
    session.load_best()
    assert all(torch.equal(p, session.average.weights[name]) for name, p in session.model.named_parameters())
