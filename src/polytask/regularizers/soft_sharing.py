"""Soft sharing: each task has its own weights, which are pulled towards each other."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from polytask.regularizers.base import Regularizer, RegularizerContext
from polytask.regularizers.trace_norm import trace_norms
from polytask.settings import NonNegative
from polytask.types import UserError

if TYPE_CHECKING:
    from polytask.model import MultiTaskModel, Pass

Form = Literal["l2", "trace"]


class SoftSharing(Regularizer):
    """Soft sharing: keeps the tasks' own weights W_1 ... W_K, those of the adapter, similar to each other.

    form l2: `weight * mean_{i<j} |W_i - W_j|^2`, summed over all weights, mean over the pairs of tasks.
    form trace: `weight * sum_W |[W_1; ...; W_K]|_*`, for each weight the trace norm (the sum of singular values) of the
    matrix whose rows are the tasks' flattened weights: few independent rows, that is, tasks that share. Like any norm,
    it also makes the weights themselves small.
    Intended for the adapter own_encoder; the per-task parts of other adapters can be shared softly too. Weights of
    tasks that are not in the step's stream are constants: they do not change.

    Papers: Duong et al., "Low Resource Dependency Parsing", 2015 (l2); Yang & Hospedales, "Trace Norm Regularised Deep
    Multi-Task Learning", 2017 (trace: its last-axis flattening). Cost: reading all tasks' weights, and no forward pass.
    """

    capturable = True
    of_weights = True
    divisible = True

    def __init__(self, context: RegularizerContext, *, form: Form = "l2", weight: NonNegative = 0.01) -> None:
        super().__init__(context)
        model, self.tasks = context.model, tuple(context.weights)
        if not any(model.adapter.task_parameters(task) for task in self.tasks):
            raise UserError(
                "recipe: adapter: soft_sharing requires an adapter with per-task parameters; own_encoder has a whole "
                "encoder per task"
            )
        if len(self.tasks) < 2:
            raise UserError("recipe: tasks: soft_sharing requires at least two trained tasks, found 1")
        self.form = form
        self.weight = weight
        if form == "trace":
            self.not_capturable = "form trace waits for the device (torch.linalg.eigh)"

    def penalty(self, model: "MultiTaskModel", forward: "Pass") -> Tensor:
        weights = [
            [w if task in forward.counts else w.detach() for w in model.adapter.task_parameters(task)]
            for task in self.tasks
        ]
        rows = list(zip(*weights, strict=True))  # for each weight, that of every task
        return self.weight * (mean_distance(rows) if self.form == "l2" else trace_norms(rows))


def mean_distance(rows: Sequence[Sequence[Tensor]]) -> Tensor:
    """Sum over weights of the mean over pairs of `|W_i - W_j|^2`, computed as `2/(K-1) sum_i |W_i - mean|^2`."""
    parts = []
    for tasks in rows:
        # The mean may be a constant, because the gradients of the terms with respect to it cancel.
        mean = torch.stack([w.detach() for w in tasks]).mean(0)
        parts += [2 / (len(tasks) - 1) * F.mse_loss(w, mean, reduction="sum") for w in tasks]
    return torch.stack(parts).sum()
