"""One step: what moves and what does not, accumulation, clipping, precision."""

from typing import Any

import pytest
import torch

from polytask.training.step import take_step
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
        lambda: session.feed.next_stream(draws),
    )


def test_a_task_that_took_no_part_does_not_move(make_session: Any) -> None:
    session = make_session()
    before = weights(session)
    step(session, Draw("one", 4))
    step(session, Draw("two", 4))  # task one now has momentum, and must still stay
    middle = weights(session)
    step(session, Draw("two", 4))
    after = weights(session)
    moved = {name for name in after if not torch.equal(after[name], middle[name])}
    assert not any(name.startswith("heads.one") for name in moved)
    assert {"heads.two.output.weight", "trunk.words.weight"} <= moved
    assert not torch.equal(before["heads.one.output.weight"], middle["heads.one.output.weight"])


def test_heads_only_leaves_the_trunk_and_takes_no_gradient(make_session: Any) -> None:
    session = make_session(parts="heads")
    before = weights(session)
    outcome = step(session, Draw("one", 4), Draw("two", 4))
    after = weights(session)
    assert {name.split(".")[0] for name in after if not torch.equal(after[name], before[name])} == {"heads"}
    assert all(p.grad is None for p in session.model.trunk.parameters())
    assert not any(p is q for p in session.model.trunk.parameters() for q in session.optimizer.state)
    assert outcome.examples == 8


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
