"""Mixed batches: every step has examples of all tasks."""

import math
from collections.abc import Collection
from itertools import pairwise

import numpy as np

from polytask.samplers.base import SamplerContext, StepSampler, power_shares
from polytask.settings import Share
from polytask.types import Draw


class Mixed(StepSampler):
    """batch_size examples per step, divided among all tasks by p_i ~ N_i^alpha.

        c_i = batch_size (p_1 + ... + p_i);  count_i = floor(c_i + u) - floor(c_{i-1} + u),  u uniform in [0, 1)

    Systematic rounding: the counts always sum to batch_size, each is the exact share rounded up or down, and its
    expectation is the exact share. alpha 1 is proportional, 0 is equal shares. A task whose share of a step is less
    than one example is in some steps and not in others.

    Paper: Aghajanyan et al., "Muppet", 2021 (heterogeneous batches).
    """

    def __init__(self, context: SamplerContext, *, alpha: Share = 1.0) -> None:
        super().__init__(context)
        self.alpha = alpha
        self._divide()

    def _divide(self) -> None:
        """Divide a step among the tasks that may be drawn."""
        shares_K = power_shares(self.context.sizes, self.alpha)
        if self.active != self.tasks:
            shares_K = shares_K[[self.tasks.index(task) for task in self.active]]
            shares_K = shares_K / shares_K.sum()
        self.size = self.context.mixed_count(dict(zip(self.active, shares_K.tolist(), strict=True)))
        self.ends: list[float] = (self.size * np.cumsum(shares_K)).tolist()

    def leave_out(self, tasks: Collection[str]) -> bool:
        any_left = super().leave_out(tasks)
        if any_left:
            self._divide()
        return any_left

    def draws(self, step: int) -> tuple[Draw, ...]:
        u, size = self.uniform(step), self.size
        # The last one ends at the size of the step, whatever the rounding error of the cumulative sum.
        ends = [0, *(min(math.floor(end + u), size) for end in self.ends[:-1]), size]
        counts = [end - start for start, end in pairwise(ends)]
        return tuple(Draw(task, count) for task, count in zip(self.active, counts, strict=True) if count)
