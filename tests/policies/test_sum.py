import torch

from polytask.policies.sum import WeightedSum


def test_weighted_sum_of_the_tasks_that_took_part() -> None:
    policy = WeightedSum({"a": 1.0, "b": 0.5, "c": 3.0})
    assert policy.weigh({"a": torch.tensor(2.0), "b": torch.tensor(4.0)}).item() == 4.0
    assert policy.weigh({"c": torch.tensor(2.0)}).item() == 6.0
