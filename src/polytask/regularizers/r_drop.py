"""Two passes with different dropout give the same answers."""

import torch
from torch import Tensor

from polytask.model import MultiTaskModel, Pass
from polytask.regularizers.base import Regularizer, RegularizerContext
from polytask.types import NonNegative


class RDrop(Regularizer):
    """R-Drop: `weight * (KL(p1 || p2) + KL(p2 || p1))`, p1 and p2 the answers of two passes with different dropout.

    Scores: squared error. Mean over a task's examples, times the task's weight. The paper takes half the sum of the two
    KLs, so its alpha is 2 * `weight`. It also learns from the second pass's answers: `both_losses: true` adds their
    losses (the heads' own, whatever `loss` a task names). Without dropout, and without them, the penalty is 0.

    Paper: Liang et al., "R-Drop", 2021. Costs twice a plain step.
    """

    def __init__(self, context: RegularizerContext, *, weight: NonNegative = 1.0, both_losses: bool = False) -> None:
        super().__init__(context)
        self.weight = weight
        self.both_losses = both_losses

    def penalty(self, model: MultiTaskModel, done: Pass) -> Tensor:
        second = model.run(done.stream).outputs
        penalty = self.weight * self.apart(model, done.outputs, second)
        if not self.both_losses:
            return penalty
        labels = done.stream.labels
        losses = [self.context.weights[t] * model.head(t).loss(second[t], labels[t]) for t in second]
        return penalty + torch.stack(losses).sum()
