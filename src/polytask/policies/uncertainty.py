"""Weights learned from how uncertain each task is."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from polytask.policies.base import Policy, PolicyContext


class Uncertainty(Policy):
    """Each task's loss divided by a variance that is learned: `exp(-s) w L + s/2`, for scores `exp(-s)/2 w L + s/2`.

    Summed over the step's tasks; s = log sigma^2 is learned for each task and starts at 0, w is its `weight` in the
    recipe, L its loss. Where L stands still, s goes to log 2wL (log wL for scores), and L then counts `1/(2L)` whatever
    w is: tasks come to weigh the inverse of their losses, and the recipe's weights tell only on the way there. What is
    learned goes at `train.head_lr` (left out: the optimizer's lr): at the rate of an encoder, s hardly moves.

    Paper: Kendall, Gal & Cipolla, "Multi-Task Learning Using Uncertainty to Weigh Losses for Scene Geometry and
    Semantics", 2018, with log sigma^2 learned, as they advise. Only the tasks of a step move their s.
    """

    capturable = True

    def __init__(self, context: PolicyContext) -> None:
        super().__init__(context)
        # One parameter for each task, not one vector: a task that took no part must have no gradient at all.
        for task in context.weights:
            self.register_parameter(_name(task), nn.Parameter(torch.zeros(())))

    def weigh(self, losses: Mapping[str, Tensor]) -> Tensor:
        parts = []
        for task, loss in losses.items():
            s = self.get_parameter(_name(task))
            half = 0.5 if self.context.kinds[task] == "score" else 1.0
            parts.append(half * torch.exp(-s) * self.context.weights[task] * loss + s / 2)
        return torch.stack(parts).sum()


def _name(task: str) -> str:
    return f"log_variance_{task}"
