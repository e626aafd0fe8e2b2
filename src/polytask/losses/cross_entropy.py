"""Cross-entropy with label smoothing and class weights."""

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from polytask.losses.base import ClassWeights, Loss, at_least_float32, class_weights_tensor, mean_of_terms, over_words
from polytask.settings import Rate
from polytask.types import LabelKind, LabelSpace


class CrossEntropy(Loss):
    """`-sum_c q_c log p_c` with smoothed labels q and class weights; with the defaults, the same as the heads' loss.

    `smoothing` (eps; Szegedy et al. 2016): for classes `q_c = (1 - eps) [c = y] + eps/C`, for yes_no
    `q = (1 - eps) y + eps/2`. `class_weights`: one number per class, in the task's order (no, yes for yes_no), or
    balanced, which is scikit-learn's `N / (C n_c)` computed from the training rows. The mean divides by the sum of the
    weights.

    If both are given, classes follow torch: each term of the sum has the weight of its own class. For yes_no the whole
    example has the weight of its label.

    multilabel: the mean over classes of `-w_c q_c log p_c - (1 - q_c) log(1 - p_c)` with yes_no's smoothing: a class's
    weight is that of the rows that have it (torch's `pos_weight`), and balanced counts labels instead of rows.

    tokens: that of classes, where every word is an example with its tag as the class. choice: that of classes, where C
    is the number of options of the row; there are no class weights.
    """

    kinds: ClassVar[tuple[LabelKind, ...]] = ("classes", "yes_no", "multilabel", "tokens", "choice")

    def __init__(
        self, labels: LabelSpace, counts: tuple[int, ...], *, smoothing: Rate = 0.0, class_weights: ClassWeights = None
    ) -> None:
        super().__init__(labels, counts)
        self.smoothing = smoothing
        self.weights_C = class_weights_tensor(class_weights, labels, counts)

    def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
        if self.labels.kind == "classes" and not self.smoothing:
            outputs = at_least_float32(outputs)
            return F.cross_entropy(outputs, labels, weight=self._weights(outputs))
        return mean_of_terms(*self.terms(outputs, labels))

    def terms(self, outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        outputs = at_least_float32(outputs)
        if self.labels.kind == "tokens":
            return over_words(self._class_terms, outputs, labels)
        if self.labels.kind == "classes":
            return self._class_terms(outputs, labels)
        if self.labels.kind == "choice":
            return self._option_terms(outputs, labels)
        if self.labels.kind == "multilabel":
            targets_BC = labels.to(outputs) * (1 - self.smoothing) + self.smoothing / 2
            losses_B = F.binary_cross_entropy_with_logits(
                outputs, targets_BC, reduction="none", pos_weight=self._weights(outputs)
            ).mean(-1)
            return losses_B, torch.ones_like(losses_B)
        weights_B = self._weights(outputs)[labels.long()]
        targets_B = labels.to(outputs) * (1 - self.smoothing) + self.smoothing / 2
        losses_B = F.binary_cross_entropy_with_logits(outputs, targets_B, reduction="none")
        return weights_B * losses_B, weights_B

    def _weights(self, outputs: Tensor) -> Tensor:
        self.weights_C = self.weights_C.to(outputs)  # copies only in the first call
        return self.weights_C

    def _option_terms(self, outputs_BM: Tensor, labels_B2: Tensor) -> tuple[Tensor, Tensor]:
        """The terms of options: labels are the index of the right one, and the number of options."""
        log_p_BM, counts_B = outputs_BM.log_softmax(-1), labels_B2[:, 1]
        missing_BM = torch.arange(outputs_BM.shape[1], device=counts_B.device) >= counts_B[:, None]
        uniform_B = log_p_BM.masked_fill(missing_BM, 0).sum(-1) / counts_B
        given_B = log_p_BM.gather(-1, labels_B2[:, :1]).squeeze(-1)
        losses_B = -((1 - self.smoothing) * given_B + self.smoothing * uniform_B)
        return losses_B, torch.ones_like(losses_B)

    def _class_terms(self, outputs_BC: Tensor, labels_B: Tensor) -> tuple[Tensor, Tensor]:
        weights_B = self._weights(outputs_BC)[labels_B]
        # torch's cross_entropy computes the same, but waits for the device if it has both weights and smoothing.
        log_p_BC, classes = outputs_BC.log_softmax(-1), len(self.weights_C)
        given_B = weights_B * log_p_BC.gather(-1, labels_B[:, None]).squeeze(-1)
        uniform_B = (self.weights_C * log_p_BC).sum(-1) / classes
        return -((1 - self.smoothing) * given_B + self.smoothing * uniform_B), weights_B
