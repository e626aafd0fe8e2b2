"""Dynamic weight average: task weights that depend on how fast each loss decreases."""

from collections.abc import Mapping

import torch
from torch import Tensor

from polytask.losses.base import weighted_sum
from polytask.policies.base import Policy, PolicyContext
from polytask.settings import Positive
from polytask.types import StepReport


class DynamicWeightAverage(Policy):
    """Tasks whose loss decreases slowly get a larger weight: `w_k = K softmax(r / T)_k`, `r_k = L_k(e-1) / L_k(e-2)`.

    L_k(e) is the mean of task k's training losses over its steps in epoch e, K the number of tasks, T the
    `temperature`; the larger T, the more equal the weights. All tasks have the same weight in the first two epochs, so
    a run needs at least three. A task without a loss in one of the two epochs has r = 1. Each w_k is multiplied by the
    task's `weight` in the recipe.

    Paper: Liu, Johns & Davison, "End-to-End Multi-Task Learning with Attention", 2019.
    """

    capturable = True
    earlier_K: Tensor
    last_K: Tensor
    sums_K: Tensor
    counts_K: Tensor

    def __init__(self, context: PolicyContext, *, temperature: Positive = 2.0) -> None:
        super().__init__(context)
        self.temperature = temperature
        self.index = {task: k for k, task in enumerate(context.weights)}
        unknown = torch.full((len(self.index),), float("nan"), dtype=torch.float64)
        # Mean losses of the last two epochs; NaN if a task had no loss.
        self.register_buffer("earlier_K", unknown.clone())
        self.register_buffer("last_K", unknown.clone())
        # The current epoch.
        self.register_buffer("sums_K", torch.zeros_like(unknown))
        self.register_buffer("counts_K", torch.zeros_like(unknown))

    def factors(self) -> Tensor:
        """[K]: w without the recipe's weights."""
        ratios_K = self.last_K / self.earlier_K
        ratios_K = torch.where(ratios_K.isfinite(), ratios_K, 1.0)
        return len(self.index) * (ratios_K / self.temperature).softmax(0)

    def weigh(self, losses: Mapping[str, Tensor]) -> Tensor:
        factors_K = self.factors().float()
        weights = {task: self.context.weights[task] * factors_K[self.index[task]] for task in losses}
        return weighted_sum(losses, weights)

    def observe(self, report: StepReport) -> None:
        for task, loss in report.losses.items():
            self.sums_K[self.index[task]] += loss
            self.counts_K[self.index[task]] += 1
        if report.step % self.context.steps_per_epoch == 0:  # before the first step of the next epoch
            self.earlier_K.copy_(self.last_K)
            self.last_K.copy_(self.sums_K / self.counts_K)
            self.sums_K.zero_()
            self.counts_K.zero_()
