"""Past examples again, beside the new ones."""

from collections.abc import Mapping

import torch
from torch import Tensor

from polytask.policies.base import Keep, MemoryPlan, Policy, PolicyContext


class Replay(Policy):
    """Experience replay: `sum_i w_i loss_i` over the step's tasks and a batch from the memory of every other one.

    Memories as for `gem`, but their losses are learned from like any other, heads and adapters included.
    Paper: Chaudhry et al., "On Tiny Episodic Memories in Continual Learning", 2019.
    """

    capturable = True

    def __init__(
        self, context: PolicyContext, *, size: int = 256, keep: Keep = "reservoir", batch: int | None = None
    ) -> None:
        super().__init__(context)
        self.plan = MemoryPlan(size, keep, batch, trained=True)

    @property
    def memory(self) -> MemoryPlan:
        return self.plan

    def weigh(self, losses: Mapping[str, Tensor]) -> Tensor:
        return torch.stack([self.context.weights[task] * loss for task, loss in losses.items()]).sum()
