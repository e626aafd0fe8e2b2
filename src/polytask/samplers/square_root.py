"""Each step from one task, in proportion to the square roots of the tasks' sizes."""

import numpy as np
import numpy.typing as npt

from polytask.samplers.base import ChanceSampler, shares


class SquareRoot(ChanceSampler):
    """p_i ~ N_i^0.5: half way between equal shares and proportional ones.

    A task a hundred times larger than another comes ten times as often.

    Paper: Stickland and Murray, "BERT and PALs", 2019.
    """

    def chances(self, step: int) -> npt.NDArray[np.float64]:
        return shares(self.context, 0.5)
