"""Sampling in proportion to the tasks' sizes."""

import numpy as np
import numpy.typing as npt

from polytask.samplers.base import RandomSampler, power_shares


class Proportional(RandomSampler):
    """p_i ~ N_i: in an epoch each example of every task is expected once.

    Paper: Sanh et al., "A Hierarchical Multi-task Approach", 2019, uses it as its baseline.
    """

    def probabilities(self, step: int) -> npt.NDArray[np.float64]:
        return power_shares(self.context.step_sizes, 1.0)
