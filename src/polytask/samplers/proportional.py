"""Each step from one task, in proportion to the tasks' sizes."""

import numpy as np
import numpy.typing as npt

from polytask.samplers.base import ChanceSampler, shares


class Proportional(ChanceSampler):
    """p_i ~ N_i: over an epoch each example of every task is expected once.

    Paper: Sanh et al., "A Hierarchical Multi-task Approach", 2019, uses it as its baseline.
    """

    def chances(self, step: int) -> npt.NDArray[np.float64]:
        return shares(self.context, 1.0)
