"""The interface of losses, and the formulas that several packages use: weighted sums and distances between outputs.

Knows outputs and labels; knows no model. The meaning of outputs is fixed ([B, C] class scores, [B] logits of yes, [B]
scores scaled to [0, 1], [B, W, C + 1] scores of words' tags), so predictions, regularizers and evaluation depend
neither on the loss nor on whether a head learns standardized scores.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import ClassVar, Literal

import torch
from torch import Tensor

from polytask.kinds.base import Form
from polytask.kinds.table import KINDS
from polytask.kinds.tokens import with_width
from polytask.types import NO_LABEL, LabelKind, LabelSpace, UserError, unknown

Terms = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""A function of outputs and labels, as `Loss.terms`."""
ClassWeights = tuple[float, ...] | Literal["balanced"] | None


class Loss(ABC):
    """Computes the mean loss of a task's examples from their outputs and labels."""

    kinds: ClassVar[tuple[LabelKind, ...]]
    """The kinds of label it supports."""

    def __init__(self, labels: LabelSpace, counts: tuple[int, ...]) -> None:
        self.labels = labels
        self.counts = counts
        """Number of training examples per class (no, yes for yes_no), or of words per tag; empty for scores."""

    @abstractmethod
    def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return the mean over the examples, in float32 (in float64 if the outputs are float64)."""

    def terms(self, outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return [B] losses, each times its example's weight, and [B] weights: the mean is `sum losses / sum weights`.

        A loss without it cannot be used for a task that has rows without labels.
        """
        raise NotImplementedError


def at_least_float32(outputs: Tensor) -> Tensor:
    """Convert half-precision outputs to float32; leave others unchanged."""
    return outputs.to(torch.promote_types(outputs.dtype, torch.float32))


def class_weights_tensor(weights: ClassWeights, labels: LabelSpace, counts: tuple[int, ...]) -> Tensor:
    """Return one weight per class: the recipe's, ones, or `balanced`: `N / (C n_c)`, which gives classes equal weight.

    C is the number of classes that have training examples. A class without examples gets 1, the mean weight.
    """
    if labels.kind == "choice" and weights is not None:
        raise UserError(
            f"recipe: loss.class_weights: must be left out for kind choice, whose options are no classes; found "
            f"{weights if isinstance(weights, str) else list(weights)}"
        )
    if weights == "balanced":
        share = sum(counts) / max(1, sum(count > 0 for count in counts))
        return torch.tensor([share / count if count else 1.0 for count in counts])
    if weights is None:
        return torch.ones(len(labels.classes))
    if len(weights) != len(labels.classes) or any(weight <= 0 for weight in weights):
        raise UserError(
            f"recipe: loss.class_weights: must be one number above 0 for each of the {len(labels.classes)} classes "
            f"({', '.join(labels.classes)}), found {list(weights)}"
        )
    return torch.tensor(weights)


def mean_of_terms(losses_B: Tensor, weights_B: Tensor) -> Tensor:
    """`sum_i loss_i / sum_i w_i`, where the losses include the weights (`Loss.terms`); 0 without weights."""
    return losses_B.sum() / weights_B.sum().clamp(min=torch.finfo(weights_B.dtype).tiny)


def over_words(class_terms: Terms, outputs_BWC: Tensor, labels_BW: Tensor) -> tuple[Tensor, Tensor]:
    """Return the terms of texts whose words have tags (kinds/tokens.py): sums over words of the terms of classes."""
    labels_BW = with_width(labels_BW, outputs_BWC.shape[1])
    is_word_BW = outputs_BWC[..., -1] * (labels_BW != NO_LABEL)
    terms = class_terms(outputs_BWC[..., :-1].flatten(0, 1), labels_BW.clamp(min=0).flatten())
    losses_B, weights_B = ((values.view_as(is_word_BW) * is_word_BW).sum(-1) for values in terms)
    return losses_B, weights_B


def mean_of_labelled(losses_B: Tensor, weights_B: Tensor, labelled_B: Tensor, of_all: bool = False) -> Tensor:
    """`sum_i loss_i / sum_i w_i` over the labelled examples; 0 if there are none. Shapes are static.

    `of_all`: times n/B for n labelled of B examples. With weights of 1 this is the mean over all examples, where those
    without a label have a loss of 0.
    """
    loss, weight = (terms_B.masked_fill(~labelled_B, 0).sum() for terms_B in (losses_B, weights_B))
    if of_all:
        loss = labelled_B.to(loss.dtype).mean() * loss
    return loss / weight.clamp(min=torch.finfo(weight.dtype).tiny)


def label_terms(outputs: Tensor, labels: Tensor, kind: LabelKind) -> tuple[Tensor, Tensor]:
    """Return the terms (`Loss.terms`) of the heads' own loss: cross-entropy, binary cross-entropy or squared error."""
    return KINDS[kind].terms(at_least_float32(outputs), labels)


def weighted_sum(losses: Mapping[str, Tensor], weights: Mapping[str, float] | Mapping[str, Tensor]) -> Tensor:
    """`sum_t weights[t] losses[t]` over the tasks t in `losses`."""
    return torch.stack([weights[task] * loss for task, loss in losses.items()]).sum()


def symmetric_distance(one: Tensor, other: Tensor, kind: LabelKind, fixed_targets: bool = False) -> Tensor:
    """Mean over examples of `KL(p || q) + KL(q || p)` of class probabilities, or of the squared error of scores.

    With `fixed_targets`, the gradient of KL(q || p) is taken only with respect to p and that of KL(p || q) only with
    respect to q, as in mt-dnn. The value is the same; each gradient is about half as large, exactly half in the limit
    p = q.
    """
    if kind not in KINDS:
        raise UserError(unknown("kind", kind, KINDS, "kind"))
    return KINDS[kind].distance(at_least_float32(one), at_least_float32(other), fixed_targets)


def distillation_loss(outputs: Tensor, targets: Tensor, kind: LabelKind, temperature: float, form: Form) -> Tensor:
    """Mean over examples of `T^2 KL(q || p)` or `-T^2 sum_c q_c log p_c`, or of the squared error of scores.

    p and q are the probabilities of the outputs and of the targets at temperature T. The factor T^2 keeps the
    gradient's magnitude (Hinton et al. 2015). The two forms differ by the entropy of q, which has no gradient.
    """
    return KINDS[kind].distillation(at_least_float32(outputs), at_least_float32(targets), temperature, form)
