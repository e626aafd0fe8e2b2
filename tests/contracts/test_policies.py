"""Every policy of the table: one finite number from any tasks, the sum when it says so, whatever their order."""

import pytest
import torch

from polytask.policies import POLICIES
from polytask.policies.base import PolicyContext

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
def test_state_round_trip(name: str) -> None:
    policy = POLICIES[name](CONTEXT)
    other = POLICIES[name](CONTEXT)
    other.load_state_dict(policy.state_dict())
    losses = {"a": torch.tensor(0.5), "c": torch.tensor(3.0)}
    assert torch.equal(policy.weigh(losses), other.weigh(losses))
