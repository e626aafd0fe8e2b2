"""What a task learns to make small, where the recipe names something other than its head's own loss.

Knows outputs and labels; knows no model and no other task. Outputs stay what they were ([B, C] class scores, [B] logits
of yes, [B] scores scaled to 0..1), so that predictions, regularizers and evaluation are the same with every loss.
"""

from abc import ABC, abstractmethod
from typing import ClassVar, Literal

import torch
from torch import Tensor

from polytask.types import LabelKind, LabelSpace, UserError

ClassWeights = tuple[float, ...] | Literal["balanced"] | None


class Loss(ABC):
    """Outputs and labels of a task's examples in, their mean loss out."""

    kinds: ClassVar[tuple[LabelKind, ...]]
    """The kinds of label it fits."""

    def __init__(self, labels: LabelSpace, counts: tuple[int, ...]) -> None:
        self.labels = labels
        self.counts = counts
        """Training examples of each class (no, yes for yes_no); empty for scores."""

    @abstractmethod
    def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Mean over the examples, in float32 (float64 where the outputs are)."""


def precise(outputs: Tensor) -> Tensor:
    """Half-precision outputs as float32; others as they are."""
    return outputs.to(torch.promote_types(outputs.dtype, torch.float32))


def weights_of(given: ClassWeights, labels: LabelSpace, counts: tuple[int, ...]) -> Tensor:
    """A factor for each class: the recipe's, 1, or `balanced`: `N / (C n_c)`, so that all classes weigh the same.

    C counts the classes that have training examples. One that has none is never a label: it gets 1, the mean.
    """
    if given == "balanced":
        share = sum(counts) / max(1, sum(count > 0 for count in counts))
        return torch.tensor([share / count if count else 1.0 for count in counts])
    if given is None:
        return torch.ones(len(labels.classes))
    if len(given) != len(labels.classes) or any(weight <= 0 for weight in given):
        raise UserError(
            f"recipe: loss.class_weights: a number above 0 is needed for each of the {len(labels.classes)} classes "
            f"({', '.join(labels.classes)}), found {list(given)}"
        )
    return torch.tensor(given)


def weighted_mean(losses_B: Tensor, weights_C: Tensor, labels_B: Tensor) -> Tensor:
    """`sum_i w_i loss_i / sum_i w_i`, w_i the factor of example i's class."""
    weights_B = weights_C[labels_B.long()]
    return (weights_B * losses_B).sum() / weights_B.sum()
