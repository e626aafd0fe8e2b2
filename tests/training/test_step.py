"""One step: which parameters change, accumulation, clipping, precision."""

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from polytask.encoders.bert import Attention
from polytask.policies import POLICIES
from polytask.regularizers.base import Regularizer
from polytask.settings import MethodChoice
from polytask.training.memory import Memory
from polytask.training.step import set_training_mode, take_step
from polytask.types import Draw


def weights(session: Any) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in session.model.named_parameters()}


def step(session: Any, *draws: Draw) -> Any:
    torch.manual_seed(7)
    return take_step(
        session.model,
        session.optimizer,
        session.objective,
        session.settings,
        lambda: session.feed.next_batch(draws),
    )


def test_a_task_that_took_no_part_does_not_move(make_session: Any) -> None:
    session = make_session()
    before = weights(session)
    step(session, Draw("one", 4))
    step(session, Draw("two", 4))  # task one has momentum, and still must not change
    middle = weights(session)
    step(session, Draw("two", 4))
    after = weights(session)
    moved = {name for name in after if not torch.equal(after[name], middle[name])}
    assert not any(name.startswith("heads.one") for name in moved)
    assert {"heads.two.output.weight", "encoder.words.weight"} <= moved
    assert not torch.equal(before["heads.one.output.weight"], middle["heads.one.output.weight"])


def test_heads_only_leaves_the_encoder_and_takes_no_gradient(make_session: Any) -> None:
    session = make_session(parts="heads")
    before = weights(session)
    outcome = step(session, Draw("one", 4), Draw("two", 4))
    after = weights(session)
    assert {name.split(".")[0] for name in after if not torch.equal(after[name], before[name])} == {"heads"}
    assert all(p.grad is None for p in session.model.encoder.parameters())
    assert not any(p is q for p in session.model.encoder.parameters() for q in session.optimizer.state)
    assert outcome.examples == 8


@pytest.mark.parametrize("parts", ["adapters", "heads"])
def test_a_frozen_encoder_has_dropout_only_if_it_shall(make_session: Any, parts: str) -> None:
    def losses(folder: str, **options: Any) -> set[float]:
        session = make_session(folder, MethodChoice("houlsby"), parts=parts, **options)
        session.model.heads["one"].dropout.p = 0.0
        set_training_mode(session.model, session.settings)
        batch = session.feed.next_batch([Draw("one", 4)])
        found = set()
        for seed in range(3):
            torch.manual_seed(seed)
            outputs = session.model.run(batch.together).outputs
            found.add(session.objective.task_losses(session.model, batch.together, outputs, 0.0)["one"].item())
        return found

    assert len(losses("fixed")) == 1
    assert len(losses("with dropout", frozen_dropout=True)) == 3


def test_accumulated_gradients_are_those_of_one_large_batch(make_session: Any) -> None:
    """Without dropout, two passes of four examples give the gradient of one pass of eight."""
    gradients = []
    for folder, count, accumulate in [("a", 8, 1), ("b", 4, 2)]:
        session = make_session(folder, accumulate=accumulate, clip=None)
        for module in session.model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
            elif hasattr(module, "dropout") and isinstance(module.dropout, float):
                module.dropout = 0.0
        step(session, Draw("one", count))
        gradients.append({n: p.grad for n, p in session.model.named_parameters() if p.grad is not None})
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient, atol=1e-6, rtol=1e-4)


def test_clipping(make_session: Any) -> None:
    session = make_session(clip=1e-3)
    outcome = step(session, Draw("one", 4))
    norm = torch.stack([p.grad.norm() for p in session.model.parameters() if p.grad is not None]).norm()
    assert outcome.gradient_norm > 1e-3  # as it was before
    assert norm.item() == pytest.approx(1e-3, rel=1e-3)


def test_bf16_is_close_to_float32_and_weights_stay_float32(make_session: Any) -> None:
    losses = []
    for folder, precision in [("a", "float32"), ("b", "bf16")]:
        session = make_session(folder, precision=precision)
        losses.append(step(session, Draw("one", 4)).losses["one"])
        assert all(p.dtype == torch.float32 for p in session.model.parameters())
    assert losses[0] == pytest.approx(losses[1], rel=0.05)
    assert losses[0] != losses[1]


# --- policies that need per-task gradients ----------------------------------------------------------------------------
def with_policy(session: Any, name: str, **options: Any) -> Any:
    context = session.objective.policy.context
    policy = POLICIES[name](context, **options)
    plan = policy.memory
    session.feed.memory = None if plan is None else Memory(plan, session.model.tasks, 5)
    session.objective = replace(session.objective, policy=policy)
    return session


def step_apart(session: Any, *draws: Draw) -> Any:
    torch.manual_seed(7)
    per_task = session.objective.policy.needs_task_gradients
    return take_step(
        session.model,
        session.optimizer,
        session.objective,
        session.settings,
        lambda: session.feed.next_batch(draws, per_task),
    )


def without_dropout(model: Any) -> None:
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        if isinstance(module, Attention):
            module.dropout = 0.0


def gradients(session: Any) -> dict[str, torch.Tensor]:
    return {name: p.grad.clone() for name, p in session.model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_without_conflicts_gem_is_the_plain_step(make_session: Any, accumulate: int, precision: str) -> None:
    """With empty memories, two tasks in one step give the gradient of their sum."""
    found = []
    for folder, policy in (("a", "sum"), ("b", "gem")):
        session = with_policy(make_session(folder, accumulate=accumulate, precision=precision), policy)
        without_dropout(session.model)  # separate passes draw other dropout than one pass
        step_apart(session, Draw("one", 4), Draw("two", 4))
        found.append(gradients(session))
    assert found[0].keys() == found[1].keys()
    tolerance = 1e-6 if precision == "float32" else 2e-2
    for name, grad in found[0].items():
        torch.testing.assert_close(found[1][name], grad, atol=tolerance, rtol=tolerance, msg=name)


@pytest.mark.parametrize("name", ["gem", "a_gem"])
def test_remembered_tasks_constrain_and_do_not_train(make_session: Any, name: str) -> None:
    session = with_policy(make_session(), name, size=8)
    step_apart(session, Draw("two", 4))
    assert session.feed.memory.others(["one"]) == ["two"]
    before = weights(session)
    outcome = step_apart(session, Draw("one", 4))
    moved = {key for key, after in weights(session).items() if not torch.equal(after, before[key])}
    assert "encoder.layers.0.up.weight" in moved
    assert not any(key.startswith("heads.two") for key in moved)
    assert outcome.losses.keys() == {"one"}
    assert outcome.examples == 4


def test_gem_keeps_the_gradient_from_going_against_the_memory(make_session: Any) -> None:
    """The memory's task learns the opposite of the step's, so the two conflict; afterwards they do not."""
    session = with_policy(make_session(), "gem", size=4)
    model, feed = session.model, session.feed
    without_dropout(model)
    with torch.no_grad():
        low, high = model.head("one").output.weight
        model.head("two").output.weight.copy_((low - high)[None])
    feed.examples["two"] = copy.copy(feed.examples["one"])
    feed.examples["two"].labels = feed.examples["one"].labels.astype("float32")
    feed.memory.observe("two", [0, 1, 2, 3])
    feed.order._latest["one"] = (0, np.arange(40))
    batch = feed.next_batch([Draw("one", 4)], True)
    (memory,) = batch.remembered()
    shared = [p for p in model.encoder.parameters() if p.requires_grad]
    loss = model.head("two").loss(model.run(memory).outputs["two"], memory.labels["two"])
    reference = torch.autograd.grad(loss, shared, allow_unused=True)
    own = model.head("one").loss(model.run(batch.together).outputs["one"], batch.together.labels["one"])
    plain = torch.autograd.grad(own, shared, allow_unused=True)
    dot = sum(float((a * b).sum()) for a, b in zip(plain, reference, strict=True) if a is not None and b is not None)
    assert dot < 0
    torch.manual_seed(7)
    settings = replace(session.settings, clip=None)
    take_step(model, session.optimizer, session.objective, settings, lambda: batch)
    made = [p.grad for p in shared]
    size = sum(float(a.square().sum()) for a in reference if a is not None)
    after = sum(float((a * b).sum()) for a, b in zip(made, reference, strict=True) if a is not None and b is not None)
    assert abs(after) < 1e-4 * size  # on the border: as close to the plain gradient as allowed


def test_replay_learns_from_what_it_remembers(make_session: Any) -> None:
    session = with_policy(make_session(), "replay", size=8, batch=2)
    step_apart(session, Draw("two", 4))
    before = weights(session)
    outcome = step_apart(session, Draw("one", 4))
    assert outcome.losses.keys() == {"one", "two"}
    assert outcome.examples == 6
    assert not torch.equal(weights(session)["heads.two.output.weight"], before["heads.two.output.weight"])


def test_penalties_are_added_to_per_task_gradients(make_session: Any) -> None:
    class Pull(Regularizer):
        def __init__(self) -> None: ...

        def penalty(self, model: Any, done: Any) -> torch.Tensor:
            return 1000.0 * model.encoder.words.weight.square().sum()

    session = with_policy(make_session(regularizers={"pull": Pull()}, clip=None), "gem")
    outcome = step_apart(session, Draw("one", 4), Draw("two", 4))
    words = session.model.encoder.words.weight
    assert outcome.penalties["pull"] > 0
    cosine = torch.nn.functional.cosine_similarity(words.grad.flatten(), words.detach().flatten(), dim=0)
    assert float(cosine) > 0.99
