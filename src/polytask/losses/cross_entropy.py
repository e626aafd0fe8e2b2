"""Cross-entropy with smoothed labels and weighted classes."""

from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor

from polytask.losses.base import ClassWeights, Loss, precise, weighted_mean, weights_of
from polytask.types import LabelKind, LabelSpace, UserError


class CrossEntropy(Loss):
    """`-sum_c q_c log p_c` with smoothed labels q and weighted classes; the heads' own loss when neither is asked for.

    `smoothing` (eps; Szegedy et al. 2016): classes `q_c = (1 - eps) [c = y] + eps/C`, yes_no `q = (1 - eps) y + eps/2`.
    `class_weights`: a number for each class, in the task's order (no, yes for yes_no), or balanced, which is
    scikit-learn's `N / (C n_c)` from the training rows. The mean divides by the sum of the weights.

    With both, classes do as torch does: each term of the sum has its own class's weight. yes_no gives the whole
    example the weight of its label.
    """

    kinds: ClassVar[tuple[LabelKind, ...]] = ("classes", "yes_no")

    def __init__(
        self,
        labels: LabelSpace,
        counts: tuple[int, ...],
        *,
        smoothing: float = 0.0,
        class_weights: ClassWeights = None,
    ) -> None:
        super().__init__(labels, counts)
        if not 0 <= smoothing < 1:
            raise UserError(f"recipe: loss.smoothing: a number from 0 up to (not with) 1 is needed, found {smoothing}")
        self.smoothing = smoothing
        self.weights_C = weights_of(class_weights, labels, counts)

    def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
        outputs = precise(outputs)
        self.weights_C = self.weights_C.to(outputs)  # once: afterwards they are where they should be
        if self.labels.kind == "classes":
            return F.cross_entropy(outputs, labels, weight=self.weights_C, label_smoothing=self.smoothing)
        targets_B = labels.to(outputs) * (1 - self.smoothing) + self.smoothing / 2
        losses_B = F.binary_cross_entropy_with_logits(outputs, targets_B, reduction="none")
        return weighted_mean(losses_B, self.weights_C, labels)
