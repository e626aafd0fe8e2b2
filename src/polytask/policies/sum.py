"""Losses added up with fixed weights."""

from collections.abc import Mapping

import torch
from torch import Tensor

from polytask.policies.base import Policy


class WeightedSum(Policy):
    """`sum_i w_i loss_i`, with the weights of the recipe's tasks (1 where none is given)."""

    capturable = True

    def weigh(self, losses: Mapping[str, Tensor]) -> Tensor:
        return torch.stack([self.context.weights[task] * loss for task, loss in losses.items()]).sum()
