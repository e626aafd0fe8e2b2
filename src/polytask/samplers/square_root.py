"""Sampling in proportion to the square roots of the tasks' sizes."""

import numpy as np
import numpy.typing as npt

from polytask.samplers.base import RandomSampler, power_shares


class SquareRoot(RandomSampler):
    """p_i ~ N_i^0.5: halfway between equal and proportional shares.

    A task with a hundred times as many examples is drawn ten times as often.

    Paper: Stickland and Murray, "BERT and PALs", 2019.
    """

    def probabilities(self, step: int) -> npt.NDArray[np.float64]:
        return power_shares(self.context.step_sizes, 0.5)
