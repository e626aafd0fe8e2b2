"""Soft sharing: each task has weights of its own, held near the others'."""

from collections.abc import Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from polytask.model import MultiTaskModel, Pass
from polytask.regularizers.base import Regularizer, RegularizerContext
from polytask.types import NonNegative, UserError

Form = Literal["l2", "trace"]
FLOOR = 1e-12
"""Share of a Gram matrix's largest eigenvalue that is added to all of them: near 0 a root's gradient has no bound."""


class SoftSharing(Regularizer):
    """Soft sharing: holds the tasks' own weights W_1 ... W_K, those of the adapter, together.

    form l2: `weight * mean_{i<j} |W_i - W_j|^2`, summed over all weights, mean over the pairs of tasks.
    form trace: `weight * sum_W |[W_1; ...; W_K]|_*`, for each weight the trace norm (the sum of singular values) of the
    matrix whose rows are the tasks' weights, flattened: few independent rows, that is, tasks that share. It also makes
    the weights themselves small, as any norm does.
    Made for the adapter own_encoder; other adapters' per-task parts can be shared softly too. Weights of tasks that are
    not in the step's stream count as numbers: nothing moves them.

    Papers: Duong et al., "Low Resource Dependency Parsing", 2015 (l2); Yang & Hospedales, "Trace Norm Regularised Deep
    Multi-Task Learning", 2017 (trace: its last-axis flattening). Costs the reading of all tasks' weights, and no pass.
    """

    def __init__(self, context: RegularizerContext, *, form: Form = "l2", weight: NonNegative = 0.01) -> None:
        super().__init__(context)
        model = context.model
        if not any(model.adapter.task_parameters(task) for task in model.tasks):
            raise UserError(
                "recipe: adapter: soft_sharing needs an adapter with per-task parts, own_encoder for whole encoders"
            )
        if len(model.tasks) < 2:
            raise UserError("recipe: tasks: soft_sharing needs two tasks or more, found 1")
        self.form = form
        self.weight = weight

    def penalty(self, model: MultiTaskModel, done: Pass) -> Tensor:
        own = [
            [w if task in done.outputs else w.detach() for w in model.adapter.task_parameters(task)]
            for task in model.tasks
        ]
        rows = list(zip(*own, strict=True))  # for each weight, that of every task
        return self.weight * (mean_distance(rows) if self.form == "l2" else trace_norms(rows))


def mean_distance(rows: Sequence[Sequence[Tensor]]) -> Tensor:
    """Sum over weights of the mean over pairs of `|W_i - W_j|^2`, which is `2/(K-1) sum_i |W_i - mean|^2`."""
    parts = []
    for tasks in rows:
        # Fixed: the terms' gradients by the mean cancel.
        mean = torch.stack([w.detach() for w in tasks]).mean(0)
        parts += [2 / (len(tasks) - 1) * F.mse_loss(w, mean, reduction="sum") for w in tasks]
    return torch.stack(parts).sum()


def trace_norms(rows: Sequence[Sequence[Tensor]]) -> Tensor:
    """Sum over weights of the trace norm of the [K, N] matrix of the tasks' flattened weights."""
    norms: Tensor = _TraceNorms.apply(len(rows[0]), *(w for tasks in rows for w in tasks))  # type: ignore[no-untyped-call]
    return norms


class _TraceNorms(torch.autograd.Function):
    """`sum tr((W W')^1/2)` with the gradient `(W W')^-1/2 W`, through the K x K matrix W W'.

    Between the passes it keeps that small matrix and no copy of the weights. In float64: tasks that have hardly parted
    have singular values thousands of times below the largest, and squared these are lost in float32.
    """

    @staticmethod
    def forward(ctx: Any, num_tasks: int, *weights: Tensor) -> Tensor:
        stacked = (_matrix(weights[i : i + num_tasks]) for i in range(0, len(weights), num_tasks))
        squares_PK, vectors_PKK = torch.linalg.eigh(torch.stack([w_KN @ w_KN.T for w_KN in stacked]))
        floor_P1 = FLOOR * squares_PK[:, -1:] + torch.finfo(torch.float64).tiny
        values_PK = (squares_PK.clamp(min=0) + floor_P1).sqrt()
        ctx.save_for_backward((vectors_PKK / values_PK[:, None]) @ vectors_PKK.mT, *weights)
        total: Tensor = values_PK.sum().to(weights[0].dtype)
        return total

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        inverse_PKK, *weights = ctx.saved_tensors
        found: list[Tensor | None] = []
        for p, inverse_KK in enumerate(inverse_PKK):
            tasks = weights[p * len(inverse_KK) : (p + 1) * len(inverse_KK)]
            gradient_KN = grad * (inverse_KK @ _matrix(tasks))
            found += [g.view_as(w).to(w.dtype) for g, w in zip(gradient_KN, tasks, strict=True)]
        return None, *(g if needed else None for g, needed in zip(found, ctx.needs_input_grad[1:], strict=True))


def _matrix(tasks: Sequence[Tensor]) -> Tensor:
    return torch.stack([w.flatten() for w in tasks]).double()
