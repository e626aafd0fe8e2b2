"""Each step from one task, in proportion to the tasks' sizes."""

import numpy as np

from polytask import seeds
from polytask.samplers.base import SamplerContext, StepSampler
from polytask.types import Draw


class Proportional(StepSampler):
    """p_i ~ N_i: over an epoch each example of every task is expected once.

    Paper: Sanh et al., "A Hierarchical Multi-task Approach", 2019, uses it as its baseline.
    """

    def __init__(self, context: SamplerContext) -> None:
        super().__init__(context)
        sizes = np.array(list(context.sizes.values()), dtype=np.float64)
        self.shares = sizes / sizes.sum()

    def draws(self, step: int) -> tuple[Draw, ...]:
        rng = seeds.generator(self.context.seed, "sampler", step)
        return (Draw(self.tasks[rng.choice(len(self.tasks), p=self.shares)], self.context.batch_size),)
