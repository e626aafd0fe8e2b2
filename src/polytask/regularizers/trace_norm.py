"""The trace norm of stacked weights, with a backward pass that needs little memory."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

FLOOR = 1e-12
"""Share of a Gram matrix's largest eigenvalue that is added to all of them: near 0 a root's gradient is unbounded."""


def trace_norms(rows: Sequence[Sequence[Tensor]]) -> Tensor:
    """Sum over weights of the trace norm of the [K, N] matrix whose rows are the tasks' flattened weights."""
    norms: Tensor = _TraceNorms.apply(len(rows[0]), *(w for tasks in rows for w in tasks))  # type: ignore[no-untyped-call]
    return norms


class _TraceNorms(torch.autograd.Function):
    """`sum tr((W W')^1/2)` with the gradient `(W W')^-1/2 W`, computed from the K x K matrix W W'.

    Between forward and backward it keeps that small matrix and no copy of the weights. It computes in float64: the
    weights of tasks that have hardly diverged have singular values thousands of times smaller than the largest, and
    their squares are lost in float32.
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
        grads: list[Tensor | None] = []
        for p, inverse_KK in enumerate(inverse_PKK):
            tasks = weights[p * len(inverse_KK) : (p + 1) * len(inverse_KK)]
            grad_KN = grad * (inverse_KK @ _matrix(tasks))
            grads += [g.view_as(w).to(w.dtype) for g, w in zip(grad_KN, tasks, strict=True)]
        return None, *(g if needed else None for g, needed in zip(grads, ctx.needs_input_grad[1:], strict=True))


def _matrix(tasks: Sequence[Tensor]) -> Tensor:
    return torch.stack([w.flatten() for w in tasks]).double()
