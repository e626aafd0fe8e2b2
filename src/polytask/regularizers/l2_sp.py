"""L2-SP: weight decay towards the pretrained weights."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polytask.fused_forms import fusible
from polytask.regularizers.base import Pull, Regularizer, RegularizerContext
from polytask.settings import NonNegative

if TYPE_CHECKING:
    from polytask.model import MultiTaskModel, Pass


class L2Sp(Regularizer):
    """L2-SP: `alpha/2 |w - w0|^2 + beta/2 |v|^2`, w the trainable pretrained weights, w0 their start, v new weights.

    w is the encoder, and with the adapter own_encoder the tasks' copies of it; v are the heads and the other adapters.
    Sums, not means. Heads, adapters and copies of tasks that are not in the step's stream are left out, so that they do
    not change. Set the optimizer's `weight_decay` to 0: it pulls towards zero what this pulls towards its start. w0
    takes the memory of one encoder. It is in no checkpoint: a resumed run starts from the same pretrained weights.

    Paper: Li, Grandvalet & Davoine, "Explicit Inductive Bias for Transfer Learning with Convolutional Networks", 2018
    (alpha 0.1 and beta 0.01 in the authors' code). Cost: reading the weights, whatever the batch size; about a tenth
    of a small step.
    """

    capturable = True
    of_weights = True
    divisible = True

    def __init__(self, context: RegularizerContext, *, alpha: NonNegative = 0.1, beta: NonNegative = 0.01) -> None:
        super().__init__(context)
        self.alpha = alpha
        self.beta = beta
        encoder, replacements = context.model.encoder, context.model.adapter.replacements()
        unused = {p for index in replacements for p in encoder.layers[index].parameters()}
        self._encoder = [p for p in encoder.parameters() if p.requires_grad and p not in unused]
        copies = [p for layer in replacements.values() for p in layer.parameters() if p.requires_grad]
        self._start = {p: p.detach().clone() for p in [*self._encoder, *copies]}

    def penalty(self, model: "MultiTaskModel", forward: "Pass") -> Tensor:
        pretrained, new = self._parts(model, forward)
        distance = squared_distance(pretrained, [self._start[p] for p in pretrained], model.device)
        size = sum((p.square().sum() for p in new), torch.zeros((), device=model.device))
        return self.alpha / 2 * distance + self.beta / 2 * size

    def pulls(self, model: "MultiTaskModel", forward: "Pass") -> list[Pull]:
        pretrained, new = self._parts(model, forward)
        to_start = [Pull(p, self.alpha, self._start[p]) for p in pretrained]
        return [*to_start, *(Pull(p, self.beta) for p in new)]

    def _parts(self, model: "MultiTaskModel", forward: "Pass") -> tuple[list[nn.Parameter], list[nn.Parameter]]:
        """w and v: the pretrained and the new weights of the encoder and of the tasks in the stream."""
        own = [
            parameter
            for task in forward.counts
            for parameter in [*model.head(task).parameters(), *model.adapter.task_parameters(task)]
        ]
        pretrained = [*self._encoder, *(p for p in own if p in self._start)]
        return pretrained, [p for p in own if p.requires_grad and p not in self._start]


@fusible
def squared_distance(weights: Sequence[Tensor], centres: Sequence[Tensor], device: torch.device) -> Tensor:
    """`sum_i (w_i - c_i)^2` over all elements of all tensors."""
    parts = (F.mse_loss(w, c, reduction="sum") for w, c in zip(weights, centres, strict=True))
    return sum(parts, torch.zeros((), device=device))
