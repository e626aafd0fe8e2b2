"""Weights that follow how fast each task's loss falls."""

from collections.abc import Mapping

import torch
from torch import Tensor

from polytask.policies.base import Policy, PolicyContext
from polytask.types import StepReport, UserError


class DynamicWeightAverage(Policy):
    """Tasks whose loss falls slower weigh more: `w_k = K softmax(r / T)_k`, `r_k = L_k(e-1) / L_k(e-2)`.

    L_k(e) is the mean of task k's training losses over the steps of epoch e that it took part in, r_k how much of it
    was left one epoch later, K the number of tasks, T the `temperature`; the larger T, the more alike the weights. The
    first two epochs weigh all tasks the same, so it takes three to matter. A task without a loss in one of the two
    epochs has r = 1. Each w_k is multiplied by the task's `weight` in the recipe.

    Paper: Liu, Johns & Davison, "End-to-End Multi-Task Learning with Attention", 2019.
    """

    earlier_K: Tensor
    last_K: Tensor
    sums_K: Tensor
    counts_K: Tensor

    def __init__(self, context: PolicyContext, *, temperature: float = 2.0) -> None:
        super().__init__(context)
        if temperature <= 0:
            raise UserError(f"recipe: policy.temperature: a number above 0 is needed, found {temperature}")
        self.temperature = temperature
        self.index = {task: k for k, task in enumerate(context.weights)}
        nothing = torch.full((len(self.index),), float("nan"), dtype=torch.float64)
        # Mean losses of the last two epochs; no number where there was no loss.
        self.register_buffer("earlier_K", nothing.clone())
        self.register_buffer("last_K", nothing.clone())
        # The epoch under way.
        self.register_buffer("sums_K", torch.zeros_like(nothing))
        self.register_buffer("counts_K", torch.zeros_like(nothing))

    def factors(self) -> Tensor:
        """[K], without the recipe's own weights."""
        ratios_K = self.last_K / self.earlier_K
        ratios_K = torch.where(ratios_K.isfinite(), ratios_K, 1.0)
        return len(self.index) * (ratios_K / self.temperature).softmax(0)

    def weigh(self, losses: Mapping[str, Tensor]) -> Tensor:
        factors_K = self.factors().float()
        parts = [self.context.weights[task] * factors_K[self.index[task]] * loss for task, loss in losses.items()]
        return torch.stack(parts).sum()

    def observe(self, report: StepReport) -> None:
        for task, loss in report.losses.items():
            self.sums_K[self.index[task]] += loss
            self.counts_K[self.index[task]] += 1
        if report.step % self.context.steps_per_epoch == 0:  # before the next epoch's first step is weighed
            self.earlier_K.copy_(self.last_K)
            self.last_K.copy_(self.sums_K / self.counts_K)
            self.sums_K.zero_()
            self.counts_K.zero_()
