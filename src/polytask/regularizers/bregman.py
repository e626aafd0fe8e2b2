"""Bregman proximal point: keeps the outputs close to those of a running average of the model."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from polytask.losses.base import symmetric_distance
from polytask.regularizers.base import Followers, Module, Regularizer, RegularizerContext, frozen_copy
from polytask.settings import NonNegative, Share
from polytask.types import LabelKind

if TYPE_CHECKING:
    from polytask.model import MultiTaskModel, Pass


class Bregman(Regularizer):
    """SMART's Bregman proximal point: `weight * l_s(f(x; theta), f(x; theta~))`, theta~ a running average of theta.

    `theta~ <- b theta~ + (1 - b) theta` after each step, b = `beta` for the first tenth of the run's steps, then
    `late_beta`; at the start theta~ = theta. l_s is the symmetric KL divergence for classes and yes_no and the squared
    error for scores; mean over a task's examples, times the task's weight. The average is evaluated without dropout and
    without gradients; it is a second copy of the model in memory and in every checkpoint.

    Paper: Jiang et al., "SMART", 2019 (the momentum form), whose mu is `weight`. Cost: 4/3 of a plain step.
    """

    capturable = True
    divisible = True
    followers: Followers

    def __init__(
        self, context: RegularizerContext, *, weight: NonNegative = 1.0, beta: Share = 0.99, late_beta: Share = 0.999
    ) -> None:
        super().__init__(context)
        self.weight = weight
        self.beta = beta
        self.late_beta = late_beta
        self.average, self.followers = running_average(context.model, self._rate)

    def penalty(self, model: "MultiTaskModel", forward: "Pass") -> Tensor:
        with torch.no_grad():
            targets = self.average(forward.stream)
        return self.weight * self.output_distance(model, forward, targets)

    def after_step(self, model: "MultiTaskModel", step: int) -> None:
        self.followers.move(step)

    def _rate(self, step: int) -> float:
        return 1 - (self.beta if 10 * step <= self.context.steps else self.late_beta)

    def state_dict(self) -> dict[str, Tensor]:
        return dict(self.average.state_dict())

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self.average.load_state_dict(state)


def running_average(model: Module, rate: Callable[[int], float]) -> tuple[Module, Followers]:
    """Return a copy of a model and what moves it: `followers.move(step)` after each step, counted from 1.

    `theta~ <- theta~ + rate(step) (theta - theta~)`, so the paper's beta is `1 - rate`. The copy is in eval mode, and
    its parameters have no gradients. Buffers do not follow those of the model.
    """
    average = frozen_copy(model)
    return average, Followers(tuple(average.parameters()), tuple(model.parameters()), rate)


def penalty_of(outputs: Tensor, targets: Tensor, kind: LabelKind = "classes") -> Tensor:
    """Return the distance l_s between the outputs of any model and those of its running average.

    Outputs are [B, C] logits for kind classes, [B] logits for yes_no, or [B] numbers for score.
    """
    return symmetric_distance(outputs, targets.detach(), kind)
