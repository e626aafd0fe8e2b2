"""Each step from one task: at first in proportion to the sizes, then more and more evenly."""

import logging

import numpy as np
import numpy.typing as npt

from polytask.samplers.base import ChanceSampler, SamplerContext, check_alpha, shares

log = logging.getLogger(__name__)


class Annealed(ChanceSampler):
    """p_i ~ N_i^alpha_e, with an alpha that falls from epoch to epoch.

        alpha_e = first + (last - first) (e - 1) / (E - 1)        epoch e of E

    With one epoch alpha is `first` throughout: by default the same as `proportional`, and a warning says so.

    Paper: Stickland and Murray, "BERT and PALs", 2019: alpha_e = 1 - 0.8 (e - 1) / (E - 1), the default. As there, an
    epoch is a chosen number of steps, the recipe's `steps_per_epoch`.
    """

    def __init__(self, context: SamplerContext, *, first: float = 1.0, last: float = 0.2) -> None:
        super().__init__(context)
        self.first = check_alpha("first", first)
        self.last = check_alpha("last", last)
        if context.epochs == 1 and self.first != self.last:
            same = "proportional" if self.first == 1 else f"{{name: power, alpha: {self.first:g}}}"
            log.warning(
                "sampler annealed: with train.epochs: 1 nothing is annealed, which is the same as sampler: %s. Set "
                "train.epochs to 2 or more; train.steps_per_epoch sets the length of an epoch",
                same,
            )

    def alpha(self, epoch: int) -> float:
        """Of epoch 1, 2 ... E; what comes after E goes on as E."""
        epochs = self.context.epochs
        done = (min(epoch, epochs) - 1) / (epochs - 1) if epochs > 1 else 0.0
        return self.first + (self.last - self.first) * done

    def chances(self, step: int) -> npt.NDArray[np.float64]:
        return shares(self.context, self.alpha(step // self.context.steps_per_epoch + 1))
