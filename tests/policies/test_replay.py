import torch

from polytask.policies.base import PolicyContext
from polytask.policies.replay import Replay


def test_remembered_losses_are_learned_from() -> None:
    policy = Replay(PolicyContext({"a": 1.0, "b": 2.0}, {"a": "classes", "b": "score"}, 10), size=7, batch=3)
    assert not policy.needs_task_gradients
    assert policy.memory.trained
    assert (policy.memory.size, policy.memory.batch) == (7, 3)
    assert policy.weigh({"a": torch.tensor(1.0), "b": torch.tensor(2.0)}).item() == 5.0
