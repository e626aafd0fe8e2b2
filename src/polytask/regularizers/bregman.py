"""Bregman proximal point: keeps the outputs close to those of a running average of the model."""

from collections.abc import Mapping

import torch
from torch import Tensor

from polytask.model import MultiTaskModel, Pass
from polytask.regularizers.base import Followers, Regularizer, RegularizerContext, frozen_copy
from polytask.settings import NonNegative, Share


class Bregman(Regularizer):
    """SMART's Bregman proximal point: `weight * l_s(f(x; theta), f(x; theta~))`, theta~ a running average of theta.

    `theta~ <- b theta~ + (1 - b) theta` after each step, b = `beta` for the first tenth of the run's steps, then
    `late_beta`; at the start theta~ = theta. l_s is the symmetric KL divergence for classes and yes_no and the squared
    error for scores; mean over a task's examples, times the task's weight. The average is evaluated without dropout and
    without gradients; it is a second copy of the model in memory and in every checkpoint.

    Paper: Jiang et al., "SMART", 2019 (the momentum form), whose mu is `weight`. Cost: 4/3 of a plain step.
    """

    capturable = True
    followers: Followers

    def __init__(
        self, context: RegularizerContext, *, weight: NonNegative = 1.0, beta: Share = 0.99, late_beta: Share = 0.999
    ) -> None:
        super().__init__(context)
        self.weight = weight
        self.beta = beta
        self.late_beta = late_beta
        self.average = frozen_copy(context.model)
        averages, weights = tuple(self.average.parameters()), tuple(context.model.parameters())
        self.followers = Followers(averages, weights, self._rate)

    def penalty(self, model: MultiTaskModel, forward: Pass) -> Tensor:
        with torch.no_grad():
            targets = self.average(forward.stream)
        return self.weight * self.output_distance(model, forward.outputs, targets)

    def after_step(self, model: MultiTaskModel, step: int) -> None:
        self.followers.move(step)

    def _rate(self, step: int) -> float:
        return 1 - (self.beta if 10 * step <= self.context.steps else self.late_beta)

    def state_dict(self) -> dict[str, Tensor]:
        return dict(self.average.state_dict())

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self.average.load_state_dict(state)
