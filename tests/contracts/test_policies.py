"""Every policy of the table: a finite result for any tasks in any order, and a state that can be restored."""

import pytest
import torch

from polytask.policies import POLICIES
from polytask.policies.base import PolicyContext
from polytask.types import StepReport

CONTEXT = PolicyContext(dict.fromkeys("abc", 1.0), {"a": "classes", "b": "yes_no", "c": "score"}, 10)


@pytest.mark.parametrize("name", POLICIES)
def test_one_loss_whatever_the_order(name: str) -> None:
    losses = {task: torch.tensor(value, requires_grad=True) for task, value in [("a", 0.5), ("b", 2.0), ("c", 0.1)]}
    total = POLICIES[name](CONTEXT).weigh(losses)
    assert total.shape == ()
    turned = POLICIES[name](CONTEXT).weigh(dict(reversed(losses.items())))
    torch.testing.assert_close(total, turned)
    total.backward()
    assert all(loss.grad is not None and torch.isfinite(loss.grad) for loss in losses.values())


@pytest.mark.parametrize("name", POLICIES)
def test_the_recipes_weights_multiply_the_losses_from_the_start(name: str) -> None:
    heavy = PolicyContext({"a": 1.0, "b": 4.0, "c": 0.5}, CONTEXT.kinds, 10)
    slopes = []
    for context in (CONTEXT, heavy):
        losses = [torch.tensor(1.0, requires_grad=True) for _ in "abc"]
        total = POLICIES[name](context).weigh(dict(zip("abc", losses, strict=True)))
        slopes.append(torch.stack(torch.autograd.grad(total, losses)))
    torch.testing.assert_close(slopes[1] / slopes[0], torch.tensor([1.0, 4.0, 0.5]))


@pytest.mark.parametrize("name", POLICIES)
def test_state_round_trip(name: str) -> None:
    policy = POLICIES[name](CONTEXT)
    for step in range(1, 36):
        policy.observe(StepReport(step, 50, step // 10 + 1, {"a": 1 / step, "c": 0.3}, {}, 0.1, 1.0, 8, 80, 0.1))
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.uniform_()
    other = POLICIES[name](CONTEXT)
    other.load_state_dict(policy.state_dict())
    losses = {"a": torch.tensor(0.5), "c": torch.tensor(3.0)}
    assert torch.equal(policy.weigh(losses), other.weigh(losses))


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("own", [1, 2, 3])
def test_gradients_get_finite_weights(name: str, own: int) -> None:
    """Gradients that agree, that conflict, of very different sizes, or none at all, for `own` tasks and memories."""
    policy = POLICIES[name](CONTEXT)
    if not policy.needs_task_gradients:
        return
    torch.manual_seed(0)
    rows = torch.randn(3, 6, dtype=torch.float64)
    sizes = torch.tensor([[1e-6], [1.0], [1e3]], dtype=torch.float64)
    for gradients in (rows, rows.abs(), rows * sizes, rows * (sizes > 1), -rows.abs() * sizes.flip(0), 0 * rows):
        weights = policy.combine(gradients @ gradients.T, own)
        assert weights.shape == (3,)
        assert weights.dtype == torch.float64
        assert weights.isfinite().all()


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_can_be_captured(name: str) -> None:
    """tests/training/test_captured_methods.py replays them."""
    assert vars(POLICIES[name]).get("capturable")
