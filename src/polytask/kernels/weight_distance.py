"""Distances between many weights and their centres in a few kernels on a GPU, where torch needs several per tensor.

For steps that differentiate a penalty; captured steps of one pass add its gradient in one kernel (updates/pull.py).
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from polytask.fused_forms import definition_of, fuses
from polytask.regularizers.ewc import weighted_distance
from polytask.regularizers.l2_sp import squared_distance


@fuses(squared_distance)
def fused_squared_distance(weights: Sequence[Tensor], centres: Sequence[Tensor], device: torch.device) -> Tensor:
    if device.type != "cuda" or not weights:
        return definition_of(squared_distance)(weights, centres, device)
    return distance(weights, centres)


@fuses(weighted_distance)
def fused_weighted_distance(weights: Sequence[Tensor], centres: Sequence[Tensor], factors: Sequence[Tensor]) -> Tensor:
    if not weights[0].is_cuda:
        return definition_of(weighted_distance)(weights, centres, factors)
    return distance(weights, centres, factors)


def distance(weights: Sequence[Tensor], centres: Sequence[Tensor], factors: Sequence[Tensor] = ()) -> Tensor:
    """`sum_i f_i (w_i - c_i)^2`; factors must not be negative, and are 1 if there are none."""
    total: Tensor = _Distance.apply(len(weights), *weights, *centres, *factors)  # type: ignore[no-untyped-call]
    return total


class _Distance(torch.autograd.Function):
    """Keeps f (w - c), which is half the gradient."""

    @staticmethod
    def forward(ctx: Any, count: int, *tensors: Tensor) -> Tensor:
        weights, centres, factors = tensors[:count], tensors[count : 2 * count], tensors[2 * count :]
        changes = torch._foreach_sub(weights, centres)
        if factors:
            scaled = torch._foreach_mul(changes, factors)
            torch._foreach_mul_(changes, scaled)
            parts = torch._foreach_norm(changes, 1)  # no term is negative
        else:
            scaled = changes
            parts = torch._foreach_norm(changes)
        ctx.save_for_backward(*scaled)
        ctx.rest = len(tensors) - count
        stacked = torch.stack(list(parts))
        return stacked.sum() if factors else stacked.square().sum()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        grads = torch._foreach_mul(list(ctx.saved_tensors), 2 * grad)
        return None, *grads, *(None,) * ctx.rest
