"""Which tasks enter a step. A sampler knows the tasks' sizes and a seed, and nothing of their content.

Every draw comes from (seed, step), so a sampler's whole state is the number of steps it has given.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from polytask import seeds
from polytask.types import Draw, Stage, StepReport, UserError


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

    stages: tuple[Stage, ...]
    """Where tasks are learned one after another; every task is scored before the first stage and at the end of each."""

    def next_step(self) -> tuple[Draw, ...]:
        """The tasks of the next step and how many examples of each."""

    def observe(self, report: StepReport) -> None:
        """Called after each step, for samplers that follow the tasks' losses."""

    def state_dict(self) -> dict[str, Any]:
        """What must be saved to go on exactly from here: JSON values only."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class StepSampler(ABC):
    """A sampler whose draws depend on the step's number alone."""

    stages: tuple[Stage, ...] = ()

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


class ChanceSampler(StepSampler):
    """A sampler that takes each step from one task, drawn by chance."""

    @abstractmethod
    def chances(self, step: int) -> npt.NDArray[np.float64]:
        """p_i of each task in step 0, 1, 2 ...; they sum to 1."""

    def draws(self, step: int) -> tuple[Draw, ...]:
        rng = seeds.generator(self.context.seed, "sampler", step)
        return (Draw(self.tasks[rng.choice(len(self.tasks), p=self.chances(step))], self.context.batch_size),)


def shares(context: SamplerContext, alpha: float) -> npt.NDArray[np.float64]:
    """p_i ~ N_i^alpha: alpha 0 is equal shares, alpha 1 is in proportion to the sizes."""
    weights = np.array(list(context.sizes.values()), dtype=np.float64) ** alpha
    normed: npt.NDArray[np.float64] = weights / weights.sum()
    return normed


def check_alpha(option: str, value: float) -> float:
    """An exponent given by a recipe, if it lies between equal shares and proportional ones."""
    if not 0 <= value <= 1:
        raise UserError(
            f"recipe: sampler.{option}: a number from 0 (equal shares) to 1 (in proportion to the sizes) is needed, "
            f"found {value}"
        )
    return value


def divided(total: int, sizes: Mapping[str, int]) -> dict[str, int]:
    """`total` things among the tasks in proportion to their sizes, in whole numbers, at least one for each.

    Largest remainder: everybody gets the whole part of the exact share, then those who are furthest below it get one
    more. Where the ones for the smallest made the sum too large, those who are furthest above it give one back.
    """
    assert total >= len(sizes), "one for each needs as many as there are tasks"
    whole = sum(sizes.values())
    given = {task: max(1, total * size // whole) for task, size in sizes.items()}
    below = {task: total * size - given[task] * whole for task, size in sizes.items()}  # in parts of 1 / whole
    while (rest := total - sum(given.values())) != 0:
        one = 1 if rest > 0 else -1
        task = max((t for t in given if given[t] + one >= 1), key=lambda t: one * below[t])
        given[task] += one
        below[task] -= one * whole
    return given
