"""Cross-entropy that looks away from what is already right."""

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from polytask.losses.base import ClassWeights, Loss, precise, weighted_mean, weights_of
from polytask.types import LabelKind, LabelSpace, UserError


class Focal(Loss):
    """`-(1 - p_t)^gamma log p_t`, p_t the probability of the right answer: examples that are easy count little.

    `gamma` 0 is cross-entropy. `class_weights` (the paper's alpha): a number for each class, in the task's order (no,
    yes for yes_no), or balanced, `N / (C n_c)` from the training rows.

    Paper: Lin et al., "Focal Loss for Dense Object Detection", 2017. Ours is a mean over examples, weighted by class;
    the paper divides the sum by the number of objects in an image.
    """

    kinds: ClassVar[tuple[LabelKind, ...]] = ("classes", "yes_no")

    def __init__(
        self,
        labels: LabelSpace,
        counts: tuple[int, ...],
        *,
        gamma: float = 2.0,
        class_weights: ClassWeights = None,
    ) -> None:
        super().__init__(labels, counts)
        if gamma < 0:
            raise UserError(f"recipe: loss.gamma: a number of 0 or more is needed, found {gamma}")
        self.gamma = gamma
        self.weights_C = weights_of(class_weights, labels, counts)

    def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
        outputs = precise(outputs)
        self.weights_C = self.weights_C.to(outputs)  # once: afterwards they are where they should be
        if self.labels.kind == "classes":
            log_p_B = outputs.log_softmax(-1).gather(-1, labels[:, None]).squeeze(-1)
        else:
            log_p_B = F.logsigmoid(outputs * (2 * labels - 1))
        # Never exactly 0: with gamma below 1 the power has an infinite slope there, and infinity times 0 is no number.
        miss_B = (-torch.expm1(log_p_B)).clamp_min(torch.finfo(outputs.dtype).tiny)
        return weighted_mean(-(miss_B**self.gamma) * log_p_B, self.weights_C, labels)
