"""The interface of samplers: which tasks are in a step. A sampler knows only the tasks' sizes and a seed.

Every draw depends on (seed, step), so a sampler's whole state is the number of steps it has drawn.
"""

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from polytask import seeds
from polytask.types import Draw, Stage, StepReport

AHEAD = 32
"""The number of steps whose random numbers are drawn at once."""
Shares = Literal["sizes", "equal"]
"""How a sampler of tasks one after another divides the steps: in proportion to the tasks' sizes, or equally."""


@dataclass(frozen=True)
class SamplerContext:
    """What every sampler is given in addition to its options."""

    sizes: Mapping[str, int]
    """The number of training examples of each task, in the recipe's order."""
    batch_size: int
    """The number of examples of a step; with `batch_sizes`, of a step of mixed tasks whose shares are their sizes."""
    seed: int
    steps_per_epoch: int
    epochs: int
    batch_sizes: Mapping[str, int] | None = None
    """The number of examples of a step of one task, if tasks differ (`train.batch_tokens`)."""

    @property
    def step_sizes(self) -> Mapping[str, int | Fraction]:
        """What tasks that have steps of their own are in proportion to: sizes, or steps to go through all examples."""
        if self.batch_sizes is None:
            return self.sizes
        return {task: Fraction(size, self.batch_sizes[task]) for task, size in self.sizes.items()}

    def count(self, task: str) -> int:
        """Return the number of examples of a step of one task."""
        return self.batch_size if self.batch_sizes is None else self.batch_sizes[task]

    def mixed_count(self, shares: Mapping[str, float]) -> int:
        """Return the number of examples of a step in which each task has this share; the shares sum to 1.

        A step of task i has b_i examples, so one of its examples is 1 / b_i of a step: the number is
        1 / sum_i(share_i / b_i).
        """
        if self.batch_sizes is None:
            return self.batch_size
        return max(1, round(1 / sum(share / self.batch_sizes[task] for task, share in shares.items())))


class Sampler(Protocol):
    """Draws the tasks of the next step; it may use the reports of past steps."""

    stages: tuple[Stage, ...]
    """The stages of a run that trains its tasks one after another; all tasks are evaluated after each stage."""

    def next_step(self) -> tuple[Draw, ...]:
        """Return the tasks of the next step and the number of examples of each."""

    def observe(self, report: StepReport) -> None:
        """Called after each step, for samplers that depend on past losses."""

    def leave_out(self, tasks: Collection[str]) -> bool:
        """Draw no examples of these tasks from now on. Return whether there are tasks left to draw."""

    def state_dict(self) -> dict[str, Any]:
        """Return what must be saved to resume exactly from here: JSON values only."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class StepSampler(ABC):
    """A sampler whose draws depend only on the step number."""

    stages: tuple[Stage, ...] = ()
    _uniforms: tuple[int, list[float]] = -1, []
    """A block of AHEAD steps, and the uniform numbers of them."""

    def __init__(self, context: SamplerContext) -> None:
        self.context = context
        self.tasks = tuple(context.sizes)
        self.steps_given = 0
        self.active = self.tasks
        """The tasks that may be drawn: all but those that `leave_out` has named."""

    @abstractmethod
    def draws(self, step: int) -> tuple[Draw, ...]:
        """Return the draws of step 0, 1, 2 ..."""

    def uniform(self, step: int) -> float:
        """Return a number in [0, 1) that depends only on (seed, step)."""
        block, place = divmod(step, AHEAD)
        if self._uniforms[0] != block:  # drawn for many steps at once, because that is faster
            steps = range(block * AHEAD, (block + 1) * AHEAD)
            rngs = seeds.generators(self.context.seed, "sampler", numbers=steps)
            self._uniforms = block, [rng.random() for rng in rngs]
        return self._uniforms[1][place]

    def next_step(self) -> tuple[Draw, ...]:
        self.steps_given += 1
        draws = self.draws(self.steps_given - 1)
        if self.active == self.tasks:
            return draws
        return tuple(draw for draw in draws if draw.task in self.active) or self._instead(self.steps_given - 1)

    def _instead(self, step: int) -> tuple[Draw, ...]:
        """Return the draws of a step whose tasks are all left out: the other tasks, in turn."""
        task = self.active[step % len(self.active)]
        return (Draw(task, self.context.count(task)),)

    def leave_out(self, tasks: Collection[str]) -> bool:
        self.active = tuple(task for task in self.tasks if task not in tasks)
        return bool(self.active)

    def observe(self, report: StepReport) -> None:
        pass

    def state_dict(self) -> dict[str, Any]:
        return {"steps_given": self.steps_given}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.steps_given = int(state["steps_given"])


class RandomSampler(StepSampler):
    """A sampler that draws one task at random for each step."""

    @abstractmethod
    def probabilities(self, step: int) -> npt.NDArray[np.float64]:
        """Return p_i of each task in step 0, 1, 2 ...; they sum to 1."""

    def draws(self, step: int) -> tuple[Draw, ...]:
        """Draw as `rng.choice(K, p=probabilities)` does, which takes longer because of its checks."""
        shares = self.probabilities(step).tolist()
        if self.active != self.tasks:
            shares = [share if task in self.active else 0.0 for task, share in zip(self.tasks, shares, strict=True)]
        task = self.tasks[bisect_right(_cumulative(tuple(shares)), self.uniform(step))]
        return (Draw(task, self.context.count(task)),)

    def leave_out(self, tasks: Collection[str]) -> bool:
        """A task that is never drawn does not count as left to draw."""
        shares = dict(zip(self.tasks, self.probabilities(self.steps_given).tolist(), strict=True))
        return super().leave_out([*tasks, *(task for task, share in shares.items() if share == 0)])


class ExampleOrder:
    """The order of each task's examples, which depends on (seed, task, epoch of the task)."""

    def __init__(self, sizes: Mapping[str, int], seed: int) -> None:
        self.sizes, self.seed = sizes, seed
        self._latest: dict[str, tuple[int, npt.NDArray[np.integer]]] = {}

    def of_epoch(self, task: str, epoch: int) -> npt.NDArray[np.integer]:
        """Return the indices of all examples of the task in their order in epoch 0, 1, 2 ... of the task."""
        latest = self._latest.get(task)
        if latest is None or latest[0] != epoch:
            latest = (epoch, seeds.generator(self.seed, "order", task, epoch).permutation(self.sizes[task]))
            self._latest[task] = latest
        return latest[1]

    def indices(self, task: str, first: int, count: int) -> list[int]:
        """Return the task's examples from its `first`-th on; a new epoch of the task may start among them."""
        epoch, place = divmod(first, self.sizes[task])
        indices: list[int] = []
        while (missing := count - len(indices)) > 0:
            indices += self.of_epoch(task, epoch)[place : place + missing].tolist()
            epoch, place = epoch + 1, 0
        return indices


@lru_cache(maxsize=16)
def _cumulative(shares: tuple[float, ...]) -> tuple[float, ...]:
    sums = np.cumsum(shares)
    return tuple((sums / sums[-1]).tolist())


def power_shares(sizes: Mapping[str, int | Fraction], alpha: float) -> npt.NDArray[np.float64]:
    """p_i ~ N_i^alpha: equal shares for alpha 0, in proportion to the sizes for alpha 1."""
    return _power_shares(tuple(sizes.values()), alpha)


@lru_cache(maxsize=16)
def _power_shares(sizes: tuple[int | Fraction, ...], alpha: float) -> npt.NDArray[np.float64]:
    weights = np.array(sizes, dtype=np.float64) ** alpha
    normed: npt.NDArray[np.float64] = weights / weights.sum()
    return normed


def divide(total: int, sizes: Mapping[str, int | Fraction]) -> dict[str, int]:
    """Divide a number among the tasks in proportion to their sizes, in whole numbers of at least 1.

    Largest remainder: every task gets its exact share rounded down, then those furthest below their share get one more.
    If rounding small shares up to 1 made the sum too large, those furthest above their share lose one.
    """
    assert total >= len(sizes), "the total must be at least the number of tasks"
    all_sizes = sum(sizes.values())
    counts = {task: max(1, total * size // all_sizes) for task, size in sizes.items()}
    remainders = {task: total * size - counts[task] * all_sizes for task, size in sizes.items()}  # times all_sizes
    while (rest := total - sum(counts.values())) != 0:
        one = 1 if rest > 0 else -1
        task = max((t for t in counts if counts[t] + one >= 1), key=lambda t: one * remainders[t])
        counts[task] += one
        remainders[task] -= one * all_sizes
    return counts
