"""Annealed sampling: at first in proportion to the tasks' sizes, then more and more evenly."""

import logging

import numpy as np
import numpy.typing as npt

from polytask.samplers.base import RandomSampler, SamplerContext, power_shares
from polytask.settings import Share

log = logging.getLogger(__name__)


class Annealed(RandomSampler):
    """p_i ~ N_i^alpha_e, with an alpha that decreases from epoch to epoch.

        alpha_e = first + (last - first) (e - 1) / (E - 1)        epoch e of E

    With one epoch, alpha is always `first`: by default this is `proportional`, and a warning is logged.

    Paper: Stickland and Murray, "BERT and PALs", 2019: alpha_e = 1 - 0.8 (e - 1) / (E - 1), the default. As there, an
    epoch is a fixed number of steps, the recipe's `steps_per_epoch`.
    """

    def __init__(self, context: SamplerContext, *, first: Share = 1.0, last: Share = 0.2) -> None:
        super().__init__(context)
        self.first = first
        self.last = last
        if context.epochs == 1 and self.first != self.last:
            same = "proportional" if self.first == 1 else f"{{name: power, alpha: {self.first:g}}}"
            log.warning(
                "sampler annealed: with train.epochs: 1 nothing is annealed, so it is the same as sampler: %s. Set "
                "train.epochs to 2 or more; train.steps_per_epoch sets the length of an epoch",
                same,
            )

    def alpha(self, epoch: int) -> float:
        """Return alpha for epoch 1, 2 ... E; epochs after E have the alpha of E."""
        epochs = self.context.epochs
        progress = (min(epoch, epochs) - 1) / (epochs - 1) if epochs > 1 else 0.0
        return self.first + (self.last - self.first) * progress

    def probabilities(self, step: int) -> npt.NDArray[np.float64]:
        return power_shares(self.context.step_sizes, self.alpha(step // self.context.steps_per_epoch + 1))
