"""Captured steps update the weights as plain ones do; their reports come late, and none is lost.

Without a CUDA device the same step is run unrecorded, on the same streams of static shape, with the same late reports.
"""

import itertools
import json
import math
import os
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from polytask.adapters import ADAPTERS
from polytask.build import make_adapter
from polytask.encoders.bert import Attention, Bert, BertShape
from polytask.heads import HEADS
from polytask.kernels.static_tensors import tensors_of
from polytask.methods import options_of
from polytask.model import MultiTaskModel
from polytask.optim import OPTIMIZERS
from polytask.optim.fused_adamw import FusedAdamW
from polytask.policies import POLICIES
from polytask.policies.base import PolicyContext
from polytask.policies.sum import WeightedSum
from polytask.regularizers.base import RegularizerContext
from polytask.regularizers.bregman import Bregman
from polytask.regularizers.l2_sp import L2Sp
from polytask.runs.bundle import task_tensors
from polytask.samplers import SAMPLERS
from polytask.samplers.base import SamplerContext
from polytask.settings import MethodChoice
from polytask.stream import Stream
from polytask.text.packing import Packer, Part
from polytask.training.averages import RunningAverage
from polytask.training.captured import CapturedSteps, reason_not_capturable
from polytask.training.checkpoint import newest
from polytask.training.feed import Batch, Feed
from polytask.training.groups import freeze, parameter_groups
from polytask.training.loop import Session
from polytask.training.objective import Objective
from polytask.types import YES_NO, Draw, UserError

from .attention_by_borders import use_on_cpu
from .recorded_graphs import RecordedGraphs

DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")),
]
SMALL: dict[str, Any] = {"size": 8, "heads": 2, "adapters": [{"name": "pal", "size": 8, "heads": 2}, "lora"]}
SMALL["adapter"] = SMALL["adapters"][0]
"""Options that must fit the tiny encoder, for every adapter that has them."""
SMALL_ADAPTERS = [
    MethodChoice(name, {one.name: SMALL[one.name] for one in options_of(method) if one.name in SMALL})
    for name, method in ADAPTERS.items()
]
SOME_ADAPTERS = [
    pytest.param(one, marks=() if one.name in ("none", "pal", "lora", "prefix") else pytest.mark.slow)
    for one in SMALL_ADAPTERS
]
CAPTURED_POLICIES = [name for name, policy in POLICIES.items() if vars(policy).get("capturable")]
CONTEXT = PolicyContext({"one": 1.0, "two": 1.0}, {"one": "classes", "two": "yes_no"}, 6)
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
WITH_THE_UPDATE = DEVICES[:1] if INTERPRETED else DEVICES[1:]
"""The update in one pass is for CUDA; on the CPU Triton's interpreter runs it, in a process of its own."""


@pytest.fixture(autouse=True)
def attention_that_can_be_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    if not INTERPRETED:
        use_on_cpu(monkeypatch)


def captured(session: Session) -> Session:
    """On the CPU, steps are recorded instead of captured: from the third on, no Python runs."""
    parts = session.optimizer, session.objective, session.settings, session.average
    session.captured = CapturedSteps(session.model, *parts)
    if session.model.device.type == "cpu":
        session.captured.graphs = RecordedGraphs(session.captured.graphs)
    return session


def batches(*streams: Stream) -> list[Batch]:
    return [Batch(partial(Stream, **vars(stream))) for stream in streams]


def undropped(session: Session) -> Session:
    for module in session.model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        if isinstance(module, Attention):
            module.dropout = 0.0
    return session


def lines(session: Session) -> list[dict[str, Any]]:
    return [json.loads(line) for line in session.journal.path.read_text().splitlines()]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("adapter", SOME_ADAPTERS, ids=lambda swap: swap.name)
def test_the_same_with_every_adapter(make_session: Any, device: str, adapter: MethodChoice) -> None:
    """In steps of one task, which have special kernels, some on side streams."""
    options = {"optimizer": "fused_adamw", "precision": "bf16", "device": device, "adapter": adapter, "batch_size": 8}
    plain, swift = (undropped(make_session(name, **options)) for name in ("plain", "swift"))
    for session in (plain, swift):
        torch.manual_seed(1)
        with torch.no_grad():
            for parameter in session.model.adapter.parameters():
                parameter += torch.randn(parameter.shape).to(parameter) * 0.1
    wanted, found = list(plain.fit()), list(captured(swift).fit())
    assert swift.captured is not None
    assert swift.captured.reason is None
    for one, other in zip(wanted, found, strict=True):
        assert list(one.losses.values()) == pytest.approx(list(other.losses.values()), rel=0.05, abs=0.03)
        assert one.gradient_norm == pytest.approx(other.gradient_norm, rel=0.1, abs=0.03)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("policy", ["sum", "pcgrad"])
def test_word_tags_learn_the_same(make_session: Any, device: str, policy: str) -> None:
    options = {"optimizer": "fused_adamw", "device": device, "tagged": True, "batch_size": 8, "sampler": "mixed"}
    plain, swift = (undropped(make_session(name, **options)) for name in ("plain", "swift"))
    for session in (plain, swift):
        session.objective = replace(session.objective, policy=POLICIES[policy](CONTEXT).to(device))
    wanted, found = list(plain.fit()), list(captured(swift).fit())
    assert swift.captured is not None
    assert swift.captured.reason is None
    for one, other in zip(wanted, found, strict=True):
        assert list(one.losses.values()) == pytest.approx(list(other.losses.values()), rel=1e-3)
    weight, other_weight = (session.model.word_tags.weight for session in (plain, swift))
    assert not weight[0].any()
    assert weight[1:].any(1).sum() == 4  # ids modulo 5
    torch.testing.assert_close(weight, other_weight, atol=3e-4, rtol=0.05)


def test_the_pass_that_compiles_kernels_has_word_tags(make_session: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the CPU, where it launches what there is in place of the kernels."""
    passes: list[Tensor | None] = []

    def embed(model: MultiTaskModel, stream: Stream) -> Tensor:
        passes.append(stream.tag_ids_T)
        return embed_words(model, stream)

    embed_words = MultiTaskModel.embed_words
    monkeypatch.setattr(MultiTaskModel, "embed_words", embed)
    for name, value in (("kernels_run", True), ("first_time", True), ("compiled_in_parallel", nullcontext())):
        monkeypatch.setattr(f"polytask.training.captured.{name}", lambda *given, value=value: value)
    session = captured(make_session(device="cpu", tagged=True, batch_size=8, optimizer="fused_adamw"))
    before = session.model.word_tags.weight.clone()
    session._compile_kernels()
    assert len(passes) == 2  # an evaluation and a step
    assert all(tags is not None and tags.any() for tags in passes)
    assert torch.equal(session.model.word_tags.weight, before)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", CAPTURED_POLICIES)
def test_the_same_with_every_policy_that_is_captured(make_session: Any, device: str, name: str) -> None:
    plain, swift = (
        undropped(make_session(folder, optimizer="fused_adamw", device=device, sampler="mixed"))
        for folder in ("plain", "swift")
    )
    for session in (plain, swift):
        policy = POLICIES[name](CONTEXT).to(device)
        if learned := [(f"policy.{one}", parameter) for one, parameter in policy.named_parameters()]:
            session.optimizer.add_param_group({"params": learned, "lr": 1e-2, "base_lr": 1e-2, "weight_decay": 0.0})
        session.objective = Objective(policy)
    wanted, found = list(plain.fit()), list(captured(swift).fit())
    assert swift.captured is not None
    assert swift.captured.reason is None
    for one, other in zip(wanted, found, strict=True):
        assert list(one.losses.values()) == pytest.approx(list(other.losses.values()), rel=0.05, abs=0.03)
    for before, after in zip(plain.objective.policy.parameters(), swift.objective.policy.parameters(), strict=True):
        torch.testing.assert_close(before, after, rtol=0.02, atol=2e-3)


def not_training_two(session: Session) -> Session:
    """The session as it is with `trained: false` for the task two: frozen, and in no sampler and no feed."""
    freeze(session.model, session.settings, ["two"])
    session.optimizer = OPTIMIZERS["fused_adamw"](parameter_groups(session.model, session.settings, 1e-3, 0.01))
    examples = {"one": session.feed.examples["one"]}
    session.feed = Feed(examples, session.feed.packer, 5)
    session.sampler = SAMPLERS["round_robin"](SamplerContext({"one": len(examples["one"])}, 4, 5, 6, 2))
    return session


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("policy", ["sum", "pcgrad"])
def test_the_same_with_a_task_that_is_not_trained(make_session: Any, device: str, policy: str) -> None:
    adapter = next(choice for choice in SMALL_ADAPTERS if choice.name == "houlsby")
    plain, swift = (
        not_training_two(undropped(make_session(name, adapter=adapter, device=device))) for name in ("plain", "swift")
    )
    for session in (plain, swift):
        session.objective = Objective(POLICIES[policy](PolicyContext({"one": 1.0}, {"one": "classes"}, 6)).to(device))
    before = {name: tensor.clone() for name, tensor in task_tensors(swift.model, "two").items()}
    wanted, found = list(plain.fit()), list(captured(swift).fit())
    assert swift.captured is not None
    assert swift.captured.reason is None
    for one, other in zip(wanted, found, strict=True):
        assert list(one.losses) == list(other.losses) == ["one"]
        assert one.losses["one"] == pytest.approx(other.losses["one"], rel=0.05, abs=0.03)
    assert all(torch.equal(tensor, before[name]) for name, tensor in task_tensors(swift.model, "two").items())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("parts", ["all", "heads"])
@pytest.mark.parametrize(("precision", "clip"), [("float32", 0.1), ("bf16", None)])
@pytest.mark.parametrize("sampler", ["proportional", "mixed"])
def test_the_same_losses_and_weights_as_plain_steps(
    make_session: Any, device: str, parts: str, precision: str, clip: float | None, sampler: str
) -> None:
    if device == "cpu" and precision == "bf16" and sampler == "mixed":
        pytest.skip("the same as with the other sampler")
    options = {"optimizer": "fused_adamw", "parts": parts, "precision": precision, "clip": clip, "device": device}
    plain = undropped(make_session("plain", sampler=sampler, **options))
    swift = captured(undropped(make_session("swift", sampler=sampler, **options)))
    wanted, found = list(plain.fit()), list(swift.fit())
    assert [report.step for report in found] == [report.step for report in wanted]
    near = {"rtol": 1e-4, "atol": 1e-5} if precision == "float32" and device == "cpu" else {"rtol": 0.05, "atol": 0.02}
    for one, other in zip(wanted, found, strict=True):
        assert (one.examples, one.tokens, one.learning_rate) == (other.examples, other.tokens, other.learning_rate)
        assert list(one.losses) == list(other.losses)
        torch.testing.assert_close(torch.tensor([*one.losses.values()]), torch.tensor([*other.losses.values()]), **near)
        torch.testing.assert_close(torch.tensor(one.gradient_norm), torch.tensor(other.gradient_norm), **near)
    for name, weight in plain.model.state_dict().items():
        torch.testing.assert_close(
            swift.model.state_dict()[name], weight, rtol=0, atol=3e-3 if near["atol"] > 0.01 else 2e-5
        )


@pytest.mark.slow
def test_under_the_interpreter(under_interpreter: Any) -> None:
    under_interpreter(__file__, "-k", "with_the_update")


def updated(session: Session, monkeypatch: pytest.MonkeyPatch, fits: bool = True) -> Session:
    """With and without the update in one pass."""
    monkeypatch.setattr("polytask.kernels.updates.kernels_run", lambda _: fits)
    session = captured(undropped(session))
    assert session.captured is not None
    assert (session.captured.operations.update is not None) == fits
    return session


def check_copies(session: Session) -> None:
    assert session.captured is not None
    assert session.captured.operations.half is not None
    session.captured.operations.half.refresh()
    for full, copy in session.captured.operations.half.copies.items():
        # The interpreter truncates where CUDA rounds.
        near = {"rtol": 2**-7, "atol": 1e-30} if INTERPRETED else {"rtol": 0.0, "atol": 0.0}
        torch.testing.assert_close(
            copy.float(), full.detach() if INTERPRETED else full.detach().bfloat16().float(), **near
        )


@pytest.mark.parametrize("device", WITH_THE_UPDATE)
@pytest.mark.parametrize(("precision", "clip"), [("float32", 0.1), ("bf16", None)])
def test_with_the_update_training_is_the_same(
    make_session: Any, monkeypatch: pytest.MonkeyPatch, device: str, precision: str, clip: float | None
) -> None:
    options = {"optimizer": "fused_adamw", "precision": precision, "clip": clip, "device": device, "epochs": 1}
    plain = updated(make_session("plain", **options), monkeypatch, fits=False)
    swift = updated(make_session("swift", **options), monkeypatch)
    near = {"rtol": 1e-4, "atol": 1e-5} if precision == "float32" and device == "cpu" else {"rtol": 0.05, "atol": 0.02}
    for one, other in zip(plain.fit(), swift.fit(), strict=True):
        torch.testing.assert_close(torch.tensor([*one.losses.values()]), torch.tensor([*other.losses.values()]), **near)
        torch.testing.assert_close(torch.tensor(one.gradient_norm), torch.tensor(other.gradient_norm), **near)
    for name, weight in plain.model.state_dict().items():
        torch.testing.assert_close(
            swift.model.state_dict()[name], weight, rtol=0, atol=3e-3 if near["atol"] > 0.01 else 2e-5
        )
    for one, other in zip(plain.optimizer.state.values(), swift.optimizer.state.values(), strict=True):
        assert float(one["step"]) == float(other["step"]) > 0
    if precision == "bf16":
        check_copies(swift)


@pytest.mark.parametrize("device", WITH_THE_UPDATE)
@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_with_the_update_pulls_are_the_penalty(
    make_session: Any, monkeypatch: pytest.MonkeyPatch, device: str, precision: str
) -> None:
    """Without the update in one pass, the penalty is differentiated."""
    options = {"optimizer": "fused_adamw", "precision": precision, "clip": 0.5, "device": device, "epochs": 1}
    ends = []
    for fits in (False, True):
        session = make_session(str(fits), **options)
        context = RegularizerContext(session.model, {"one": 1.0, "two": 1.0}, 6)
        session.objective = replace(session.objective, regularizers={"l2_sp": L2Sp(context, alpha=5.0, beta=1.0)})
        reports = list(updated(session, monkeypatch, fits).fit())
        ends.append((reports, session.model.state_dict(), session.optimizer.state.values()))
    near = {"rel": 1e-4, "abs": 1e-5} if precision == "float32" else {"rel": 0.05, "abs": 0.02}
    (plain, weights, states), (swift, swift_weights, swift_states) = ends
    for one, other in zip(plain, swift, strict=True):
        assert one.losses == pytest.approx(other.losses, **near)
        assert one.penalties == pytest.approx(other.penalties, **near)
        assert one.gradient_norm == pytest.approx(other.gradient_norm, **near)
    assert swift[-1].penalties["l2_sp"] > 0
    for name, weight in weights.items():
        off = 3e-3 if precision == "bf16" else 1e-4
        torch.testing.assert_close(swift_weights[name], weight, rtol=0, atol=off)
    for state, swift_state in zip(states, swift_states, strict=True):
        assert float(state["step"]) == float(swift_state["step"]) > 0


@pytest.mark.parametrize("device", WITH_THE_UPDATE)
def test_with_the_update_a_nan_penalty_updates_nothing(
    make_session: Any, monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    """A weight that only the penalty reads: that of a pooler that no head uses."""
    options = {"optimizer": "fused_adamw", "precision": "bf16", "device": device, "on_nan": "skip"}
    session = make_session(**options)
    context = RegularizerContext(session.model, {"one": 1.0, "two": 1.0}, 6)
    session.objective = replace(session.objective, regularizers={"l2_sp": L2Sp(context)})
    updated(session, monkeypatch)
    assert session.captured is not None
    begin = session.captured.begin
    stream = session.feed.next_batch([Draw("one", 4)], static_shape=True).together
    assert all(begin(batches(stream))().skipped is None for _ in range(3))
    pooler = session.model.encoder.pooler.weight
    assert pooler in session.optimizer.state
    with torch.no_grad():
        pooler[0, 0] = math.nan
    before = {name: weight.clone() for name, weight in session.model.state_dict().items()}
    skipped = begin(batches(stream))().skipped
    assert skipped is not None
    assert "the penalty l2_sp is nan" in skipped
    for name, weight in session.model.state_dict().items():
        torch.testing.assert_close(weight, before[name], rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("device", WITH_THE_UPDATE)
def test_with_the_update_weights_may_be_changed_from_outside(
    make_session: Any, monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    """By a checkpoint or the optimizer between two steps; evaluating an average does not change them."""
    options = {"optimizer": "fused_adamw", "precision": "bf16", "device": device, "evaluate_every": 2, "epochs": 1}
    ends = []
    for number, fits in enumerate((False, True)):
        session = updated(make_session(f"run{number}", **options), monkeypatch, fits)
        session.average = RunningAverage(session.model, 0.9)
        start = {name: weight.clone() for name, weight in session.model.state_dict().items()}
        for report in session.fit():
            if report.step == 3:
                session.model.load_state_dict(start)
            if report.step == 5:
                optimizer: Any = session.optimizer
                optimizer.found_inf = optimizer.grad_scale = None
                for parameter in session.model.parameters():
                    parameter.grad = torch.full_like(parameter, 1e-3)
                optimizer.step()
            if fits:
                check_copies(session)
        ends.append(session.model.state_dict())
    for name, weight in ends[0].items():
        torch.testing.assert_close(ends[1][name], weight, rtol=0, atol=3e-3)


@pytest.mark.parametrize("device", WITH_THE_UPDATE)
def test_with_the_update_nan_updates_nothing(make_session: Any, monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    options = {"optimizer": "fused_adamw", "precision": "bf16", "device": device, "on_nan": "skip"}
    session = updated(make_session(**options), monkeypatch)
    assert session.captured is not None
    begin = session.captured.begin
    stream = session.feed.next_batch([Draw("one", 4)], static_shape=True).together

    def weights() -> dict[str, Tensor]:
        return {name: weight.clone() for name, weight in session.model.state_dict().items()}

    def counts() -> set[int]:
        return {int(state["step"]) for state in session.optimizer.state.values()}

    assert all(begin(batches(stream))().skipped is None for _ in range(3))
    good = weights()
    with torch.no_grad():
        for parameter in session.model.head("one").parameters():
            parameter.fill_(math.nan)
    bad = weights()
    assert begin(batches(stream))().skipped is not None
    for name, weight in weights().items():
        torch.testing.assert_close(weight, bad[name], rtol=0, atol=0, equal_nan=True)
    assert counts() == {3}
    session.model.load_state_dict(good)
    assert begin(batches(stream))().skipped is None
    assert counts() == {4}
    assert not all(torch.equal(weight, good[name]) for name, weight in weights().items())
    check_copies(session)


@pytest.mark.parametrize("device", DEVICES)
def test_stopped_anywhere_it_resumes_with_every_line_once(make_session: Any, device: str) -> None:
    """A stop comes after the next step is launched: that step is part of the checkpoint and of the journal."""
    options = {"optimizer": "fused_adamw", "device": device}
    straight = captured(make_session("straight", **options))
    list(straight.fit())
    stopped = captured(make_session("stopped", **options))
    steps = stopped.fit()
    seen = list(itertools.islice(steps, 8))
    assert stopped.step == seen[-1].step + 1
    stopped.save()
    steps.close()
    resumed = captured(make_session("stopped", resumed_at=9, **options))
    resumed.load(newest(stopped.checkpoints))
    assert resumed.step == 9
    rest = list(resumed.fit())
    assert [report.step for report in rest] == [10, 11, 12]
    assert [line["step"] for line in lines(resumed) if line["kind"] == "step"] == list(range(1, 13))
    near = 0 if device == "cpu" else 2e-3
    for name, weight in straight.model.state_dict().items():
        torch.testing.assert_close(resumed.model.state_dict()[name], weight, rtol=0, atol=near)


def test_a_save_in_between_loses_no_report(make_session: Any) -> None:
    session = captured(make_session(optimizer="fused_adamw"))
    seen = []
    for report in session.fit():
        seen.append(report.step)
        if report.step == 2:
            session.save()
    assert seen == list(range(1, 13))
    assert [line["step"] for line in lines(session) if line["kind"] == "step"] == seen


def test_closed_early_the_step_under_way_has_its_line(make_session: Any) -> None:
    session = captured(make_session(optimizer="fused_adamw"))
    steps = session.fit()
    next(steps)
    steps.close()
    assert [line["step"] for line in lines(session)] == [0, 1, 2]


@pytest.mark.parametrize("on_nan", ["stop", "skip"])
def test_nan_updates_nothing(make_session: Any, monkeypatch: pytest.MonkeyPatch, on_nan: str) -> None:
    """With `stop`, the step that was already launched updates nothing either."""
    session = captured(make_session(optimizer="fused_adamw", on_nan=on_nan, epochs=1))
    assert session.captured is not None
    session.captured.graphs.reason = "the loss is spoiled in Python"
    real = Objective.task_losses

    def spoiled(self: Objective, *args: Any) -> dict[str, Tensor]:
        found = real(self, *args)
        return {n: loss * math.nan for n, loss in found.items()} if session.step == 3 else found

    monkeypatch.setattr(Objective, "task_losses", spoiled)
    if on_nan == "skip":
        reports = list(session.fit())
        assert [report.step for report in reports if report.skipped] == [3]
        counts = {int(state["step"]) for state in session.optimizer.state.values()}
        assert max(counts) == 5
        return
    steps = session.fit()
    next(steps)
    weights = {name: weight.clone() for name, weight in session.model.state_dict().items()}
    next(steps)
    with pytest.raises(UserError, match=r"step 3: the loss of .* is nan.*--resume"):
        next(steps)
    assert session.step == 2
    for name, weight in session.model.state_dict().items():
        assert torch.equal(weight, weights[name])
    again = make_session(resumed_at=2, optimizer="fused_adamw", epochs=1)
    again.load(newest(session.checkpoints))
    assert again.feed.given == session.feed.given


def test_memory_that_runs_out_is_reported_with_the_step(make_session: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    session = captured(make_session(optimizer="fused_adamw", epochs=1))
    assert session.captured is not None
    session.captured.graphs.reason = "memory runs out in Python"
    real = Objective.task_losses

    def too_large(self: Objective, *args: Any) -> dict[str, Tensor]:
        if session.step == 3:
            raise torch.OutOfMemoryError("tried to allocate")
        return real(self, *args)

    monkeypatch.setattr(Objective, "task_losses", too_large)
    with pytest.raises(UserError, match=r"step 3: out of memory on .* with a batch of [\d,]+ tokens.*--resume"):
        list(session.fit())
    assert session.step == 2


def test_steps_of_one_shape_share_their_place(make_session: Any) -> None:
    session = captured(make_session(optimizer="fused_adamw"))
    assert session.captured is not None
    begin = session.captured.begin
    streams = [session.feed.next_batch([Draw("one", 4)], static_shape=True).together for _ in range(3)]
    for stream in streams:
        begin(batches(stream))()
    (graph,) = session.captured.graphs.entries.values()
    for tensor, last in zip(graph.inputs.tensors, tensors_of(streams[-1]), strict=True):
        assert torch.equal(tensor, last)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("on_nan", ["stop", "skip"])
def test_averages_of_weights_move_as_without_capturing(
    make_session: Any, monkeypatch: pytest.MonkeyPatch, on_nan: str, device: str
) -> None:
    """Bregman's and `train.ema`, on the device; not in a step that stops the run, and not in the one after it."""
    real, ends = Objective.task_losses, []
    for name in ("launched", "captured"):
        session = make_session(name, optimizer="fused_adamw", on_nan=on_nan, epochs=1, device=device)
        undropped(session)
        bregman = Bregman(RegularizerContext(session.model, {"one": 1.0, "two": 1.0}, 6), beta=0.5, late_beta=0.7)
        session.objective = replace(session.objective, regularizers={"bregman": bregman})
        session.average = RunningAverage(session.model, 0.6)
        if name == "captured":
            steps = captured(session).captured
            assert steps is not None
            steps.graphs.reason = "the loss is spoiled in Python"

        def spoiled(self: Objective, *args: Any, session: Session = session) -> dict[str, Tensor]:
            found = real(self, *args)
            return {n: loss * math.nan for n, loss in found.items()} if session.step == 3 else found

        monkeypatch.setattr(Objective, "task_losses", spoiled)
        with pytest.raises(UserError, match="step 3") if on_nan == "stop" else nullcontext():
            list(session.fit())
        ends.append({**bregman.state_dict(), **{f"ema {n}": w for n, w in session.average.weights.items()}})
        moved = (bregman.average.encoder.words.weight - session.model.encoder.words.weight).abs().max()
        assert moved > 1e-6
    for name, tensor in ends[0].items():
        torch.testing.assert_close(ends[1][name], tensor, rtol=1e-3, atol=2e-5)


def reason(session: Session, device: str = "cuda") -> str | None:
    parts = session.optimizer, session.objective, session.settings
    return reason_not_capturable(torch.device(device), *parts)


def test_why_a_run_is_not_captured(make_session: Any) -> None:
    assert reason(make_session(optimizer="fused_adamw")) is None
    assert "on cpu" in str(reason(make_session(optimizer="fused_adamw"), "cpu"))
    assert reason(make_session(optimizer="fused_adamw", accumulate=2)) is None
    assert "train.capture" in str(reason(make_session(optimizer="fused_adamw", capture=False)))


@pytest.mark.parametrize("name", POLICIES)
def test_policies_are_captured_where_they_declare_it(make_session: Any, name: str) -> None:
    session = make_session(optimizer="fused_adamw")
    session.objective = Objective(POLICIES[name](CONTEXT))
    found = reason(session)
    assert found is None if name in CAPTURED_POLICIES else type(session.objective.policy).__name__ in str(found)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_are_captured_where_they_declare_it(make_session: Any, name: str) -> None:
    session = make_session(optimizer=name)
    found, declares = reason(session), vars(OPTIMIZERS[name]).get("capturable")
    assert found is None if declares else f"{type(session.optimizer).__name__} does not declare" in str(found)


def test_every_policy_is_captured() -> None:
    assert set(POLICIES) == set(CAPTURED_POLICIES)


class Alternating(WeightedSum):
    """Its weights depend on a Python counter, which is constant in a graph."""

    steps = 0

    def weigh(self, losses: Mapping[str, Tensor]) -> Tensor:
        self.steps += 1
        return self.steps % 2 * super().weigh(losses)


class Counting(FusedAdamW):
    """Has its own step, which no other code may replace."""

    steps = 0

    def step(self, closure: Any = None) -> Any:
        self.steps += 1
        return super().step(closure)


class Unchanged(WeightedSum):
    capturable = True


def test_a_subclass_does_not_inherit_that_it_can_be_captured(make_session: Any) -> None:
    session = make_session(optimizer="fused_adamw")
    session.objective = Objective(Alternating(CONTEXT))
    assert "Alternating does not declare" in str(reason(session))
    session.objective = Objective(Unchanged(CONTEXT))
    assert reason(session) is None
    session.optimizer = Counting(session.optimizer.param_groups)
    assert "Counting does not declare" in str(reason(session))


def test_a_state_that_takes_the_fused_kernel_away_ends_capturing(make_session: Any) -> None:
    """`load_state_dict` replaces the groups' options: torch's own AdamW is not fused by default."""
    session = make_session(optimizer="fused_adamw")
    parameters = [{"params": group["params"]} for group in session.optimizer.param_groups]
    session.optimizer.load_state_dict(torch.optim.AdamW(parameters).state_dict())
    assert "FusedAdamW" in str(reason(session))


def test_the_step_of_a_subclass_is_its_own(make_session: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the update in one pass could run."""
    monkeypatch.setattr("polytask.kernels.updates.kernels_run", lambda _: True)
    session = make_session(optimizer="fused_adamw")
    assert captured(session).captured.operations.update is not None  # type: ignore[union-attr]
    session.optimizer = Counting(session.optimizer.param_groups)
    steps = captured(session).captured
    assert steps is not None
    assert steps.operations.update is None
    steps.begin([session.feed.next_batch([Draw("one", 4)], static_shape=True)])()
    assert session.optimizer.steps == 1


@pytest.mark.parametrize("adapter", SMALL_ADAPTERS, ids=lambda swap: swap.name)
def test_nor_does_a_step_of_many_tasks(monkeypatch: pytest.MonkeyPatch, adapter: MethodChoice) -> None:
    """Which go through stacked parameters together."""
    tasks = tuple("abcde")
    shape = BertShape(layers=2, hidden=32, heads=4, ffn=64, vocabulary=60, positions=32, dropout=0.0)
    heads = {task: HEADS["linear"](task, YES_NO, shape.hidden, dropout=0.0) for task in tasks}
    model = MultiTaskModel(Bert(shape), make_adapter(adapter, tasks, shape), heads)
    texts = [(np.arange(5, 9),), (np.arange(7, 14),)]
    stream = Packer(tasks, 2, 3, 16).pack([Part(task, texts) for task in tasks], static_shape=True)
    assert stream.layout.equal_tasks is not None
    expected, found = model(stream), model(replace(stream, layout=stream.layout.for_capture()))
    for task in tasks:
        torch.testing.assert_close(found[task], expected[task])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("adapter", SMALL_ADAPTERS, ids=lambda swap: swap.name)
@pytest.mark.parametrize("tasks", [["one"], ["one", "two"]], ids=len)
def test_no_part_of_a_step_reads_the_lengths(
    make_session: Any, monkeypatch: pytest.MonkeyPatch, device: str, adapter: MethodChoice, tasks: list[str]
) -> None:
    """In a graph they would be constants of one stream, and replayed for all."""
    options = {"optimizer": "fused_adamw", "precision": "bf16", "device": device, "adapter": adapter}
    session = captured(undropped(make_session(**options)))
    steps = session.captured
    assert steps is not None
    stream = session.feed.next_batch([Draw(task, 3) for task in tasks], static_shape=True).together.to(
        session.model.device
    )
    for group in session.optimizer.param_groups:
        group["lr"] = 0.0
    expected = steps.operations.differentiate("plain", stream)
    found = steps.operations.differentiate("captured", replace(stream, layout=stream.layout.for_capture()))
    torch.testing.assert_close(found, expected, rtol=1e-2, atol=1e-3)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_cuda_a_loss_that_reads_the_lengths_ends_capturing(
    make_session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Instead of losses that silently belong to other texts."""
    options = {"optimizer": "fused_adamw", "device": "cuda", "precision": "bf16"}
    real = Objective.task_losses

    def by_length(self: Objective, model: Any, stream: Any, *args: Any) -> dict[str, Tensor]:
        first = float(stream.layout.lengths[0])  # the length of a text; filler comes later
        return {task: loss * first for task, loss in real(self, model, stream, *args).items()}

    monkeypatch.setattr(Objective, "task_losses", by_length)
    wanted = [report.losses for report in undropped(make_session("plain", **options)).fit()]
    session = captured(undropped(make_session("swift", **options)))
    found = [report.losses for report in session.fit()]
    assert session.captured is not None
    assert "layout.lengths is not known" in str(session.captured.reason)
    for one, two in zip(wanted, found, strict=True):
        assert list(one.values()) == pytest.approx(list(two.values()), rel=0.1, abs=0.3)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("after", [0, 1])
def test_on_cuda_where_capturing_fails_training_goes_on(
    make_session: Any, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    options = {"optimizer": "fused_adamw", "device": "cuda", "precision": "bf16"}
    session = captured(make_session("failing", **options))
    assert session.captured is not None
    update, seen = session.captured.operations.clip_and_update, []

    def failing(*given: Any) -> Tensor:
        if torch.cuda.is_current_stream_capturing():
            seen.append(1)
            if len(seen) > after:
                torch.cuda.synchronize()  # not allowed in a graph
        return update(*given)

    monkeypatch.setattr(session.captured.operations, "clip_and_update", failing)
    losses = [report.losses for report in session.fit()]
    assert session.captured.reason is not None
    assert len(seen) == after + 1
    expected = [report.losses for report in captured(make_session("whole", **options)).fit()]
    assert len(losses) == len(expected)
    for one, two in zip(losses, expected, strict=True):
        assert one.keys() == two.keys()
        assert list(one.values()) == pytest.approx(list(two.values()), rel=0.2, abs=0.1)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_cuda_steps_become_graphs_with_other_dropout_each_time(make_session: Any) -> None:
    session = captured(make_session(optimizer="fused_adamw", device="cuda", precision="bf16"))
    assert session.captured is not None
    for module in session.model.modules():
        if isinstance(module, Attention):
            module.dropout = 0.0  # which only the kernel for short sequences can do in a graph
    stream = session.feed.next_batch([Draw("one", 4)], static_shape=True).together
    for group in session.optimizer.param_groups:
        group["lr"] = 0.0
    losses = []
    for seed in (1, 2, 3, 3, 4):
        torch.manual_seed(seed)
        losses.append(session.captured.begin(batches(stream))().losses["one"])
    assert session.captured.reason is None
    assert [graph.graph is not None for graph in session.captured.graphs.entries.values()] == [True]
    assert losses[2] == losses[3]
    assert len(set(losses)) == 4
