"""How the losses and gradients of several tasks become one update. Knows numbers; knows no model and no data."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from polytask.types import LabelKind, StepReport


@dataclass(frozen=True)
class PolicyContext:
    """What every policy is given beside its options."""

    weights: Mapping[str, float]
    """Factor of each task's loss, in the recipe's order."""
    kinds: Mapping[str, LabelKind]
    steps_per_epoch: int


class Policy(nn.Module, ABC):
    """Turns the losses of a step's tasks into the one number that is differentiated.

    A module, so that what it learns (parameters, which the optimizer moves with the model's) and what it remembers
    (buffers) is saved with every checkpoint.
    """

    def __init__(self, context: PolicyContext) -> None:
        super().__init__()
        self.context = context

    @abstractmethod
    def weigh(self, losses: Mapping[str, Tensor]) -> Tensor:
        """One loss from those of the tasks that took part in the step."""

    def observe(self, report: StepReport) -> None:
        """Called after each step, for policies that follow the tasks' losses."""
