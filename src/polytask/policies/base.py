"""The interface of policies: how the losses and gradients of several tasks become one update.

A policy knows numbers; it knows no model and no data.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from polytask.losses.base import weighted_sum
from polytask.types import LabelKind, StepReport

Floats = npt.NDArray[np.float64]
Keep = Literal["reservoir", "ring", "first"]


@dataclass(frozen=True)
class PolicyContext:
    """What every policy is given in addition to its options."""

    weights: Mapping[str, float] = field(default_factory=dict)
    """The weight of each trained task's loss, in the recipe's order: the recipe's `weight` times `train.loss_scale`.
    Policies that weight gradients do not need it."""
    kinds: Mapping[str, LabelKind] = field(default_factory=dict)
    """The kind of each task's labels."""
    steps_per_epoch: int = 1


@dataclass(frozen=True)
class MemoryPlan:
    """Which past examples a policy needs."""

    size: int
    """The number of examples kept per task."""
    keep: Keep
    """reservoir (a uniform sample of the examples seen so far), ring (the latest), or first."""
    batch: int | None
    """The number of examples per task drawn for a step; None: as many as the step has of its own."""
    trained: bool = False
    """Whether their losses are trained on like those of the step; if not, they only constrain its gradient."""
    one_gradient: bool = False
    """Whether all memories together give one gradient instead of one each."""


class Policy(nn.Module, ABC):
    """Turns the losses of a step's tasks into the scalar that is differentiated, or weights their gradients.

    It is a module, so that its learned parameters (which the optimizer updates with the model's) and its buffers are
    saved in every checkpoint.
    """

    needs_task_gradients: ClassVar[bool] = False
    """Whether it needs the gradient of each task, and `combine` is called. If not, one backward pass is enough."""
    capturable: ClassVar[bool] = False
    """Whether `weigh` can be captured in a CUDA graph. It must run the same tensor operations in every step: it reads
    no number from a tensor, and uses no Python number that changes from step to step; `observe` may change buffers in
    place. (`combine` and `observe` run between graphs and may do anything.) Each class declares this for itself; a
    subclass does not inherit it, because it may override `weigh`."""
    memory: MemoryPlan | None = None
    """The memory that the policy needs, if any."""

    def __init__(self, context: PolicyContext) -> None:
        super().__init__()
        self.context = context

    def weigh(self, losses: Mapping[str, Tensor]) -> Tensor:
        """Return one loss for the losses of the step's tasks: by default their sum with the recipe's weights."""
        return weighted_sum(losses, self.context.weights)

    def combine(self, gram_KK: Tensor, own: int) -> Tensor:
        """Return the weights of K gradients, given their inner products; the update is `sum_k weights[k] g_k`.

        The first `own` gradients are those of the step's tasks, each of the task's weighted loss; the others are those
        of memories. `gram_KK` is in float64 on the CPU.
        """
        raise NotImplementedError

    def observe(self, report: StepReport) -> None:
        """Called after each step, for policies that depend on past losses."""


class GradientPolicy(Policy):
    """A policy that weights gradients; the losses have the recipe's weights."""

    needs_task_gradients = True

    @abstractmethod
    def combine(self, gram_KK: Tensor, own: int) -> Tensor: ...


class StepPolicy(GradientPolicy):
    """A policy that compares the gradients of the tasks in one step; a step of one task is left unchanged."""

    averages: ClassVar[bool] = True
    """Whether the method's update is close to the mean of the gradients. It is then multiplied by the number of tasks,
    because polytask adds losses instead of averaging them."""

    def combine(self, gram_KK: Tensor, own: int) -> Tensor:
        if len(gram_KK) == 1 or not gram_KK.any():
            return torch.ones(len(gram_KK), dtype=gram_KK.dtype)
        # Divided by its trace, so that the result does not depend on the gradients' magnitude.
        weights_K = torch.from_numpy(self.solve((gram_KK / gram_KK.trace()).numpy()))
        return weights_K * len(gram_KK) if self.averages else weights_K

    @abstractmethod
    def solve(self, gram_KK: Floats) -> Floats:
        """Return the method's weights of K >= 2 gradients, given their inner products, which are not all 0."""
