"""Uncertainty weighting: task weights from learned variances."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from polytask.policies.base import Policy, PolicyContext


class Uncertainty(Policy):
    """Each task's loss divided by a learned variance: `exp(-s) w L + s/2`, for scores `exp(-s)/2 w L + s/2`.

    Summed over the step's tasks. s = log sigma^2 is learned per task and starts at 0, w is the task's `weight` in the
    recipe, L its loss. At the optimum, s = log 2wL (log wL for scores), and L has the weight `1/(2L)` whatever w is:
    tasks converge to weights inverse to their losses, and the recipe's weights matter only on the way there. s is
    learned at `train.head_lr` (left out: the optimizer's lr): at the learning rate of an encoder, it hardly changes.

    Paper: Kendall, Gal & Cipolla, "Multi-Task Learning Using Uncertainty to Weigh Losses for Scene Geometry and
    Semantics", 2018, with log sigma^2 learned, as they advise. A step changes s only for its own tasks.
    """

    capturable = True

    def __init__(self, context: PolicyContext) -> None:
        super().__init__(context)
        # One parameter per task instead of one vector: a task that is not in the step must have no gradient.
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
