"""Focal loss: cross-entropy that gives little weight to examples that are already right."""

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from polytask.losses.base import ClassWeights, Loss, at_least_float32, class_weights_tensor, mean_of_terms, over_words
from polytask.settings import NonNegative
from polytask.types import LabelKind, LabelSpace


class Focal(Loss):
    """`-(1 - p_t)^gamma log p_t`, where p_t is the probability of the true label: easy examples count little.

    `gamma` 0 is cross-entropy. `class_weights` (the paper's alpha): one number per class, in the task's order (no, yes
    for yes_no), or balanced, `N / (C n_c)` computed from the training rows. multilabel: the mean over classes, where a
    class's weight is that of the rows that have it. tokens: that of classes, where every word is an example.
    choice: that of classes, without class weights.

    Paper: Lin et al., "Focal Loss for Dense Object Detection", 2017.
    Difference: the mean over examples, weighted by class; the paper divides the sum by the number of objects in an
    image.
    """

    kinds: ClassVar[tuple[LabelKind, ...]] = ("classes", "yes_no", "multilabel", "tokens", "choice")

    def __init__(
        self,
        labels: LabelSpace,
        counts: tuple[int, ...],
        *,
        gamma: NonNegative = 2.0,
        class_weights: ClassWeights = None,
    ) -> None:
        super().__init__(labels, counts)
        self.gamma = gamma
        self.weights_C = class_weights_tensor(class_weights, labels, counts)

    def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return mean_of_terms(*self.terms(outputs, labels))

    def terms(self, outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        outputs = at_least_float32(outputs)
        self.weights_C = self.weights_C.to(outputs)  # copies only in the first call
        if self.labels.kind == "tokens":
            return over_words(self._class_terms, outputs, labels)
        if self.labels.kind == "classes":
            return self._class_terms(outputs, labels)
        if self.labels.kind == "choice":
            losses_B = self._focal(outputs.log_softmax(-1).gather(-1, labels[:, :1]).squeeze(-1))
            return losses_B, torch.ones_like(losses_B)
        losses_B = self._focal(F.logsigmoid(outputs * (2 * labels - 1)))
        if self.labels.kind == "multilabel":
            weights_BC = 1 + labels * (self.weights_C - 1)
            losses_B = (weights_BC * losses_B).mean(-1)
            return losses_B, torch.ones_like(losses_B)
        weights_B = self.weights_C[labels.long()]
        return weights_B * losses_B, weights_B

    def _class_terms(self, outputs_BC: Tensor, labels_B: Tensor) -> tuple[Tensor, Tensor]:
        weights_B = self.weights_C[labels_B]
        return weights_B * self._focal(outputs_BC.log_softmax(-1).gather(-1, labels_B[:, None]).squeeze(-1)), weights_B

    def _focal(self, log_p: Tensor) -> Tensor:
        # Never exactly 0: for gamma < 1 the power has an infinite slope there, and infinity times 0 is NaN.
        miss = (-torch.expm1(log_p)).clamp_min(torch.finfo(log_p.dtype).tiny)
        losses: Tensor = -(miss**self.gamma) * log_p
        return losses
