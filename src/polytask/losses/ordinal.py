"""Losses for ordered classes: a near miss costs less than a far one."""

from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from polytask.losses.base import Loss, at_least_float32
from polytask.settings import Positive
from polytask.types import LabelKind, LabelSpace


class Ordinal(Loss):
    """For classes that have an order, the order of the task's `classes`: a near miss costs less than a far one.

        soft:  -sum_j q_j log p_j,  q_j ~ exp(-slope |j - y|^power)
        emd:   sum_j (P_j - Y_j)^2, P and Y the cumulative probabilities of the outputs and of the label

    The outputs are still class scores. `slope` and `power` apply to soft: the larger, the closer to cross-entropy.

    Papers: Diaz & Marathe, "Soft Labels for Ordinal Regression", 2019 (soft; they choose the distance by task); Hou et
    al., "Squared Earth Mover's Distance-based Loss for Training Deep Neural Networks", 2016 (emd).
    """

    kinds: ClassVar[tuple[LabelKind, ...]] = ("classes",)

    def __init__(
        self,
        labels: LabelSpace,
        counts: tuple[int, ...],
        *,
        form: Literal["soft", "emd"] = "soft",
        slope: Positive = 2.0,
        power: Positive = 1.0,
    ) -> None:
        super().__init__(labels, counts)
        self.form = form
        classes_C = torch.arange(len(labels.classes), dtype=torch.float64)
        distances_CC = (classes_C - classes_C[:, None]).abs()
        soft_CC = (-slope * distances_CC**power).softmax(-1)
        cumulative_CC = (classes_C >= classes_C[:, None]).double()
        self.targets_CC = soft_CC if form == "soft" else cumulative_CC
        """Row y is the target for label y: probabilities (soft) or cumulative probabilities (emd)."""

    def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
        if self.form == "soft":
            outputs = at_least_float32(outputs)
            return F.cross_entropy(outputs, self._targets(outputs, labels))
        return self.terms(outputs, labels)[0].mean()

    def terms(self, outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        outputs = at_least_float32(outputs)
        targets_BC = self._targets(outputs, labels)
        if self.form == "soft":
            losses_B = F.cross_entropy(outputs, targets_BC, reduction="none")
        else:
            losses_B = (outputs.softmax(-1).cumsum(-1) - targets_BC).square().sum(-1)
        return losses_B, torch.ones_like(losses_B)

    def _targets(self, outputs: Tensor, labels: Tensor) -> Tensor:
        self.targets_CC = self.targets_CC.to(outputs)  # copies only in the first call
        return self.targets_CC[labels]
