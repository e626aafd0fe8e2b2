"""How the losses and gradients of several tasks become one update. Knows numbers; knows no model and no data."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from polytask.types import LabelKind, StepReport, UserError

Floats = npt.NDArray[np.float64]
Keep = Literal["reservoir", "ring", "first"]


@dataclass(frozen=True)
class PolicyContext:
    """What every policy is given beside its options."""

    weights: Mapping[str, float]
    """Factor of each task's loss, in the recipe's order."""
    kinds: Mapping[str, LabelKind]
    steps_per_epoch: int


@dataclass(frozen=True)
class MemoryPlan:
    """Which past examples a policy wants to see again."""

    size: int
    """Kept of each task."""
    keep: Keep
    """reservoir (each example seen so far is equally likely to be there), ring (the latest), or first."""
    batch: int | None
    """Drawn of each task for a step; None: as many as the step has of its own."""
    trained: bool = False
    """Their losses are learned from, as if they were part of the step; else they only judge its gradient."""
    one_gradient: bool = False
    """All memories together give one gradient rather than one each."""

    def __post_init__(self) -> None:
        for name in ("size", "batch"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UserError(f"recipe: policy.{name}: at least 1 is needed, found {value}")


class Policy(nn.Module, ABC):
    """Turns the losses of a step's tasks into the one number that is differentiated, or weighs their gradients.

    A module, so that what it learns (parameters, which the optimizer moves with the model's) and what it remembers
    (buffers) is saved with every checkpoint.
    """

    needs_task_gradients: ClassVar[bool] = False
    """Whether the tasks' gradients must be told apart: `combine` is asked. If not, one backward pass does."""
    capturable: ClassVar[bool] = False
    """Whether `weigh` can be captured in a CUDA graph. That needs the same operations on tensors in every step: no
    number read from a tensor, no Python number that changes from step to step, and no `observe`. Each class declares
    this for itself; a subclass does not inherit it, because it may override `weigh`."""

    def __init__(self, context: PolicyContext) -> None:
        super().__init__()
        self.context = context

    @property
    def memory(self) -> MemoryPlan | None:
        """The memory it needs, if any."""
        return None

    @abstractmethod
    def weigh(self, losses: Mapping[str, Tensor]) -> Tensor:
        """One loss from those of the tasks that took part in the step."""

    def combine(self, gram_KK: Tensor, own: int) -> Tensor:
        """The weights of K gradients, whose inner products these are: the update is `sum_k weights[k] g_k`.

        The first `own` are those of the step's tasks, each of its loss times its factor; the others are of memories.
        Asked for in double precision, on the CPU.
        """
        raise NotImplementedError

    def observe(self, report: StepReport) -> None:
        """Called after each step, for policies that follow the tasks' losses."""


class GradientPolicy(Policy):
    """One that weighs gradients, and leaves losses to their factors in the recipe."""

    needs_task_gradients = True

    def weigh(self, losses: Mapping[str, Tensor]) -> Tensor:
        return torch.stack([self.context.weights[task] * loss for task, loss in losses.items()]).sum()


class StepPolicy(GradientPolicy):
    """One that compares the gradients of the tasks in one step; a step of one task is left as it is."""

    averages: ClassVar[bool] = True
    """Whether the method's update is near the mean of the gradients. Losses are added here, so it is multiplied by the
    number of tasks."""

    def combine(self, gram_KK: Tensor, own: int) -> Tensor:
        if len(gram_KK) == 1 or not gram_KK.any():
            return torch.ones(len(gram_KK), dtype=gram_KK.dtype)
        # Divided by its trace, so that nothing depends on the size of the gradients.
        weights_K = torch.from_numpy(self.solve((gram_KK / gram_KK.trace()).numpy()))
        return weights_K * len(gram_KK) if self.averages else weights_K

    @abstractmethod
    def solve(self, gram_KK: Floats) -> Floats:
        """The method's weights of K >= 2 gradients whose inner products these are, not all of them 0."""
