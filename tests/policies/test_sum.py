import torch

from polytask.policies.base import PolicyContext
from polytask.policies.sum import WeightedSum


def test_weighted_sum_of_the_tasks_that_took_part() -> None:
    context = PolicyContext({"a": 1.0, "b": 0.5, "c": 3.0}, {"a": "classes", "b": "yes_no", "c": "score"}, 10)
    policy = WeightedSum(context)
    assert policy.weigh({"a": torch.tensor(2.0), "b": torch.tensor(4.0)}).item() == 4.0
    assert policy.weigh({"c": torch.tensor(2.0)}).item() == 6.0
