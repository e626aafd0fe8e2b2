"""Sampling in proportion to a power of the tasks' sizes."""

import numpy as np
import numpy.typing as npt

from polytask.samplers.base import RandomSampler, SamplerContext, power_shares
from polytask.settings import Share


class Power(RandomSampler):
    """p_i ~ N_i^alpha: alpha 0 is equal shares, 0.5 is square_root, 1 is proportional.

    Papers: Conneau and Lample, "Cross-lingual Language Model Pretraining", 2019 (alpha 0.5 and 0.7); Arivazhagan et
    al., "Massively Multilingual Neural Machine Translation in the Wild", 2019, who call 1/alpha the temperature.
    """

    def __init__(self, context: SamplerContext, *, alpha: Share = 0.5) -> None:
        super().__init__(context)
        self.alpha = alpha

    def probabilities(self, step: int) -> npt.NDArray[np.float64]:
        return power_shares(self.context.step_sizes, self.alpha)
