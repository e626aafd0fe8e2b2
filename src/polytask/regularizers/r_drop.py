"""R-Drop: two passes with different dropout should have the same outputs."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from torch import Tensor

from polytask.losses.base import symmetric_distance, weighted_sum
from polytask.regularizers.base import Regularizer, RegularizerContext
from polytask.settings import NonNegative
from polytask.types import LabelKind, UserError, unknown

if TYPE_CHECKING:
    from polytask.model import MultiTaskModel, Pass


class RDrop(Regularizer):
    """R-Drop: `weight * (KL(p1 || p2) + KL(p2 || p1))`, p1 and p2 the outputs of two passes with different dropout.

    Scores: squared error. Mean over a task's examples, times the task's weight. `task_weights` replaces `weight` for
    the tasks that it names, such as `{sts: 4.0}`: the paper chooses its weight for each data set. `both_losses: true`
    adds the losses of the second pass (the heads' own, whatever `loss` a task names), as the paper does. Without
    dropout, and without `both_losses`, the penalty is 0.

    Paper: Liang et al., "R-Drop", 2021. Cost: 2 plain steps.
    Difference: the paper takes half the sum of the two KLs, so its alpha is 2 * `weight`.
    """

    capturable = True
    divisible = True

    def __init__(
        self,
        context: RegularizerContext,
        *,
        weight: NonNegative = 1.0,
        task_weights: Mapping[str, NonNegative] | None = None,
        both_losses: bool = False,
    ) -> None:
        super().__init__(context)
        for task in task_weights or {}:
            if task not in context.weights:
                where = "recipe: regularizers: r_drop.task_weights"
                raise UserError(unknown(where, task, context.weights, "trained task"))
        self.weights = {task: (task_weights or {}).get(task, weight) * scale for task, scale in context.weights.items()}
        self.both_losses = self.needs_labels = both_losses
        if both_losses:
            self.not_divisible = "with both_losses it has means that cannot be divided"

    def penalty(self, model: "MultiTaskModel", forward: "Pass") -> Tensor:
        second = model.run(forward.stream).outputs
        penalty = self.output_distance(model, forward, second, weights=self.weights)
        if not self.both_losses:
            return penalty
        labels = forward.stream.labels
        losses = {task: model.head(task).loss(outputs, labels[task]) for task, outputs in second.items()}
        return penalty + weighted_sum(losses, self.context.weights)


def penalty_of(outputs: Tensor, second: Tensor, kind: LabelKind = "classes") -> Tensor:
    """Return R-Drop's penalty of the outputs of two passes of any model over the same batch, with other dropout.

    Outputs are [B, C] logits for kind classes, [B] logits for yes_no, or [B] numbers for score. The paper adds the
    losses of both passes, and half of this penalty times its alpha.
    """
    return symmetric_distance(outputs, second, kind)
