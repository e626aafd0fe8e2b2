"""Gradient policies on lists of gradients, for training loops of one's own."""

from collections.abc import Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from polytask.policies.base import GradientPolicy, Policy, PolicyContext
from polytask.types import UserError

Gradient = Tensor | Sequence[Tensor | None]
"""A gradient as one tensor, or as one tensor per parameter (None: zero), as `torch.autograd.grad` returns it."""
G = TypeVar("G", bound=Gradient)
COLUMNS = 2**20
"""Numbers of a gradient that are converted to float64 at once."""


@torch.no_grad()
def combine_gradients(
    policy: GradientPolicy | type[GradientPolicy], gradients: Sequence[G], memories: Sequence[G] = (), **options: Any
) -> G:
    """Return the update that a policy makes of several tasks' gradients: `sum_k weights[k] g_k`.

    `policy` is a class such as `PcGrad`, with `options` for its constructor, or an object. `gradients` has one gradient
    per task: a tensor of any shape, or a list with one tensor per parameter, in which None stands for zero. The update
    has the same form and the scale of the sum of the gradients; divide it by their number for that of the mean.
    `memories` are the gradients of remembered tasks, for `Gem` (one per task) and `AGem` (one for all).
    """
    if isinstance(policy, type) and issubclass(policy, Policy):
        policy = policy(PolicyContext(), **options)
    _check(policy, len(memories))
    rows = [_as_list(gradient) for gradient in (*gradients, *memories)]
    if not gradients or len({len(row) for row in rows}) > 1:
        found = ", ".join(str(len(row)) for row in rows) or "no gradients"
        raise UserError(f"gradients: every task needs one tensor (or None) per parameter, found {found}")
    columns = list(zip(*rows, strict=True))
    for index, column in enumerate(columns):
        shapes = [tuple(one.shape) for one in column if one is not None]
        if len(set(shapes)) > 1:
            found = ", ".join(map(str, shapes))
            raise UserError(f"gradients: those of parameter {index} must have one shape, found {found}")
    products = [_inner_products(column) for column in columns if any(one is not None for one in column)]
    gram_KK = torch.stack(products).sum(0).cpu() if products else torch.zeros(len(rows), len(rows)).double()
    if not gram_KK.isfinite().all():
        wrong = [str(k) for k, square in enumerate(gram_KK.diagonal()) if not square.isfinite()]
        raise UserError(f"gradients: NaN or infinite values in the gradients with the indices {', '.join(wrong)}")
    weights = policy.combine(gram_KK, len(gradients)).tolist()
    sums = [_weighted_sum(column, weights) for column in columns]
    return sums[0] if isinstance(gradients[0], Tensor) else sums  # type: ignore[return-value]


def _check(policy: GradientPolicy, count: int) -> None:
    """Raise a UserError if the policy does not weight gradients, or has no use for this number of memories."""
    name = type(policy).__name__
    if not isinstance(policy, Policy):
        raise UserError(
            f"policy: must be a class of polytask.policies, such as PcGrad, or its object, found {policy!r}"
        )
    if not policy.needs_task_gradients:
        raise UserError(f"policy: {name} weights losses, not gradients; call its weigh(losses) instead")
    if count and policy.memory is None:
        raise UserError(f"memories: {name} has no memories; pass all gradients as `gradients`")
    if count > 1 and policy.memory is not None and policy.memory.one_gradient:
        raise UserError(f"memories: {name} needs one gradient, that of the examples of all memories; found {count}")


def _as_list(gradient: Gradient) -> list[Tensor | None]:
    return [gradient] if isinstance(gradient, Tensor) else list(gradient)


def _inner_products(column: Sequence[Tensor | None]) -> Tensor:
    """[K, K]: the inner products of the gradients of one parameter, in float64."""
    known = next(one for one in column if one is not None)
    rows = [torch.zeros_like(known).flatten() if one is None else one.flatten() for one in column]
    total_KK = known.new_zeros(len(rows), len(rows), dtype=torch.float64)
    for piece in zip(*(row.split(COLUMNS) for row in rows), strict=True):
        piece_KN = torch.stack(piece).double()
        total_KK += piece_KN @ piece_KN.T
    return total_KK


def _weighted_sum(column: Sequence[Tensor | None], weights: Sequence[float]) -> Tensor | None:
    known = [(one, weight) for one, weight in zip(column, weights, strict=True) if one is not None]
    if not known:
        return None
    total = torch.zeros_like(known[0][0])
    for one, weight in known:
        total.add_(one, alpha=weight)
    return total
