"""The loop: the same seed gives the same weights, and a stopped run ends where an unstopped one does, bit for bit."""

import itertools
import json
from typing import Any

import pytest
import torch
from torch import Tensor

from polytask.model import MultiTaskModel, Pass
from polytask.regularizers.base import Regularizer
from polytask.training.checkpoint import newest, numbered, optimizer_tensors, step_of
from polytask.training.loop import Session
from polytask.types import EvalReport, MetricValue, TaskScore


def bits(session: Session) -> dict[str, Tensor]:
    return {**session.model.state_dict(), **optimizer_tensors(session.optimizer)}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


def lines(session: Session) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in session.journal.path.read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "seconds"} for line in found]


def test_same_seed_same_weights(make_session: Any) -> None:
    one, other = make_session("a"), make_session("b")
    reports = [list(session.fit()) for session in (one, other)]
    assert same(bits(one), bits(other))
    assert lines(one) == lines(other)
    assert [report.losses for report in reports[0]] == [report.losses for report in reports[1]]


@pytest.mark.parametrize(
    ("optimizer", "stop", "accumulate"), [("adamw", 1, 2), ("fused_adamw", 5, 1), ("fused_adamw", 9, 2)]
)
def test_a_resumed_session_ends_bit_identical(make_session: Any, optimizer: str, stop: int, accumulate: int) -> None:
    options = {"optimizer": optimizer, "save_every": 2, "evaluate_every": 3, "accumulate": accumulate}
    straight = make_session("straight", **options)
    list(straight.fit())
    stopped = make_session("stopped", **options)
    list(itertools.islice(stopped.fit(), stop))
    checkpoint = newest(stopped.checkpoints)
    resumed = make_session("stopped", resumed_at=step_of(checkpoint) if checkpoint else 0, **options)
    if checkpoint is not None:
        resumed.load(checkpoint)
        assert resumed.step == stop - stop % 2
    list(resumed.fit())
    assert same(bits(resumed), bits(straight))
    assert lines(resumed) == lines(straight)
    assert (resumed.best_step, resumed.best_value) == (straight.best_step, straight.best_value)
    resumed.load_best()
    straight.load_best()
    assert same(resumed.model.state_dict(), straight.model.state_dict())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("optimizer", ["adamw", "fused_adamw"])
def test_resumes_on_cuda_as_closely_as_its_kernels_allow(make_session: Any, optimizer: str) -> None:
    options = {"optimizer": optimizer, "save_every": 4, "precision": "bf16", "device": "cuda"}
    straight, stopped = make_session("straight", **options), make_session("stopped", **options)
    list(straight.fit())
    list(itertools.islice(stopped.fit(), 5))
    resumed = make_session("stopped", resumed_at=4, **options)
    resumed.load(newest(stopped.checkpoints))
    list(resumed.fit())
    for name, weight in resumed.model.state_dict().items():
        torch.testing.assert_close(weight, straight.model.state_dict()[name], atol=2e-3, rtol=0)


def test_lines_are_counted_once_and_losses_fall(make_session: Any) -> None:
    session = make_session(epochs=20, schedule="constant")
    reports = list(session.fit())
    assert [line["step"] for line in lines(session) if line["kind"] == "step"] == list(range(1, 121))
    assert [line["step"] for line in lines(session) if line["kind"] == "evaluation"] == list(range(0, 121, 6))
    early = [loss for report in reports[:10] for loss in report.losses.values()]
    late = [loss for report in reports[-10:] for loss in report.losses.values()]
    assert sum(late) / len(late) < 0.8 * sum(early) / len(early)
    assert {report.epoch for report in reports} == set(range(1, 21))


def test_the_best_weights_are_loaded(make_session: Any) -> None:
    session = make_session(epochs=6)
    values = {}
    weights = {}
    for report in session.fit():
        if report.evaluation is not None:
            values[report.step] = report.evaluation.mean
            weights[report.step] = {key: t.clone() for key, t in session.model.state_dict().items()}
            assert report.best == (
                values[report.step] > max([v for s, v in values.items() if s < report.step], default=-9)
            )
    best = max(values, key=lambda step: (values[step], -step))
    session.load_best()
    assert session.best_step == best
    assert same(session.model.state_dict(), weights[best])


def test_patience_stops_and_stays_stopped(make_session: Any) -> None:
    options = {"epochs": 50, "patience": 2, "evaluate_every": 1}
    session = make_session(**options)
    reports = list(session.fit())
    assert len(reports) < 300
    assert session.progress.evaluations_since_best == 2
    resumed = make_session(resumed_at=session.step, **options)
    resumed.load(newest(session.checkpoints))
    assert list(resumed.fit()) == []


def test_old_checkpoints_go_when_newer_ones_are_whole(make_session: Any) -> None:
    session = make_session(save_every=1, keep=3)
    list(session.fit())
    assert list(numbered(session.checkpoints, "step-")) == [10, 11, 12]
    assert list(numbered(session.checkpoints, "best-")) == [session.best_step]


class TowardsZero(Regularizer):
    """Half the squared norm of the weights; remembers how often it was asked."""

    def __init__(self) -> None:
        self.count = torch.zeros(())

    def penalty(self, model: MultiTaskModel, done: Pass) -> Tensor:
        return 0.5 * sum(p.square().sum() for p in model.encoder.parameters())

    def after_step(self, model: MultiTaskModel, step: int) -> None:
        self.count = self.count + 1

    def state_dict(self) -> dict[str, Tensor]:
        return {"count": self.count}

    def load_state_dict(self, state: Any) -> None:
        self.count = state["count"]


def test_regularizers_add_to_the_loss_and_keep_their_state(make_session: Any) -> None:
    plain, held = make_session("plain"), make_session("held", regularizers={"zero": TowardsZero()}, save_every=6)
    list(plain.fit())
    reports = list(held.fit())
    assert all(report.penalties["zero"] > 0 for report in reports)
    norms = [sum(p.square().sum().item() for p in s.model.encoder.layers.parameters()) for s in (plain, held)]
    assert norms[1] < norms[0]
    again = make_session("held", resumed_at=12, regularizers={"zero": TowardsZero()})
    again.load(newest(held.checkpoints))
    assert again.objective.regularizers["zero"].count == 12


@pytest.mark.parametrize("lower_is_better", [False, True])
def test_the_start_is_scored_and_never_the_best(make_session: Any, lower_is_better: bool) -> None:
    """It neither becomes the best checkpoint nor uses up patience, also where it scored best of all."""
    session = make_session(epochs=3, patience=2)
    values = {0: 0.9, 6: 0.3, 12: 0.5, 18: 0.4}

    def evaluate(step: int) -> EvalReport:
        value = 1 - values[step] if lower_is_better else values[step]
        metric = MetricValue(value, 0.0, 1.0, not lower_is_better)
        return EvalReport(step, "dev", {"one": TaskScore(0.5, {"m": metric}, "m", 20, not lower_is_better)})

    session.evaluate = evaluate
    list(session.fit())
    found = [line for line in lines(session) if line["kind"] == "evaluation"]
    assert [(line["step"], line["best"]) for line in found] == [(0, False), (6, True), (12, True), (18, False)]
    assert session.best_step == 12
    assert session.progress.evaluations_since_best == 1


def test_reports_name_the_learning_rate_of_each_part(make_session: Any) -> None:
    session = make_session(head_lr=0.5, layer_decay=0.5, schedule="constant", warmup=0)
    report = next(iter(session.fit()))
    assert report.learning_rates == {"encoder": 1e-3, "heads": 0.5}
    assert report.learning_rate == 1e-3  # the encoder's
    frozen = next(iter(make_session("frozen", head_lr=0.5, parts="heads", schedule="constant", warmup=0).fit()))
    assert (frozen.learning_rate, frozen.learning_rates) == (0.5, {"heads": 0.5})
