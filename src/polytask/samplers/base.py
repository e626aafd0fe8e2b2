"""Which tasks enter a step. A sampler knows the tasks' sizes and a seed, and nothing of their content.

Every draw comes from (seed, step), so a sampler's whole state is the number of steps it has given.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from polytask.types import Draw, StepReport


@dataclass(frozen=True)
class SamplerContext:
    """What every sampler is given beside its options."""

    sizes: Mapping[str, int]
    """Training examples of each task, in the recipe's order."""
    batch_size: int
    seed: int
    steps_per_epoch: int
    epochs: int


class Sampler(Protocol):
    """Gives the next step's draws; may look at the reports of past steps."""

    def next_step(self) -> tuple[Draw, ...]:
        """The tasks of the next step and how many examples of each."""

    def observe(self, report: StepReport) -> None:
        """Called after each step, for samplers that follow the tasks' losses."""

    def state_dict(self) -> dict[str, Any]:
        """What must be saved to go on exactly from here: JSON values only."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class StepSampler(ABC):
    """A sampler whose draws depend on the step's number alone."""

    def __init__(self, context: SamplerContext) -> None:
        self.context = context
        self.tasks = tuple(context.sizes)
        self.steps_given = 0

    @abstractmethod
    def draws(self, step: int) -> tuple[Draw, ...]:
        """The draws of step 0, 1, 2 ..."""

    def next_step(self) -> tuple[Draw, ...]:
        self.steps_given += 1
        return self.draws(self.steps_given - 1)

    def observe(self, report: StepReport) -> None:
        pass

    def state_dict(self) -> dict[str, Any]:
        return {"steps_given": self.steps_given}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.steps_given = int(state["steps_given"])
