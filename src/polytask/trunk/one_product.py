"""Linear maps of the same input as one product, whose weights' gradients can be made beside. Knows tensors only.

A GPU takes one large product faster than three small ones. Weights that lie one after another in memory, as bf16 copies
do (training/half.py), are one matrix as they are; others are put together first.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from polytask.trunk.beside import Grads, aside
from polytask.trunk.column_sums import column_sums
from polytask.trunk.kernels import kernels_run


def one_product(x_TD: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor] = ()) -> Tensor:
    """The maps' outputs side by side."""
    device = x_TD.device.type
    if torch.is_autocast_enabled(device):
        x_TD = x_TD.to(torch.get_autocast_dtype(device))
    out_TO: Tensor = _OneProduct.apply(x_TD, len(weights), *weights, *biases)  # type: ignore[no-untyped-call]
    return out_TO


class _OneProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_TD: Tensor, maps: int, *parts: Tensor) -> Tensor:
        weights, biases = parts[:maps], parts[maps:]
        weight_OD = joined(weights).to(x_TD.dtype)
        ctx.save_for_backward(x_TD, weight_OD)
        ctx.weights, ctx.biases = weights, biases
        return F.linear(x_TD, weight_OD, joined(biases).to(x_TD.dtype) if biases else None)

    @staticmethod
    def backward(ctx: Any, grad_TO: Tensor) -> tuple[Tensor | None, ...]:
        x_TD, weight_OD = ctx.saved_tensors
        grad_TO = grad_TO.contiguous()
        weights, biases = ctx.weights, ctx.biases
        learns = [any(ctx.needs_input_grad[2 : 2 + len(weights)]), any(ctx.needs_input_grad[2 + len(weights) :])]

        def gradients() -> Grads:
            grads: Grads = [None] * (len(weights) + len(biases))
            if learns[0]:
                grads[: len(weights)] = cut(grad_TO.t() @ x_TD, weights)
            if learns[1]:
                grads[len(weights) :] = cut(sums(grad_TO), biases)
            return grads

        learned = aside([*weights, *biases], gradients, grad_TO, x_TD)
        return grad_TO @ weight_OD if ctx.needs_input_grad[0] else None, None, *learned


def cut(grad_O: Tensor, parts: Sequence[Tensor]) -> Grads:
    pieces = grad_O.split([len(part) for part in parts])
    return [piece.to(part.dtype) for piece, part in zip(pieces, parts, strict=True)]


def sums(grad_TO: Tensor) -> Tensor:
    if kernels_run(grad_TO.device):
        return column_sums(grad_TO[:, None], grad_TO.dtype)[0]
    return grad_TO.sum(0)


def joined(parts: Sequence[Tensor]) -> Tensor:
    """One tensor of all their rows: where they lie if that is one after another, else a copy."""
    first, place = parts[0], parts[0].data_ptr()
    for part in parts:
        same_memory = part.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        if not (same_memory and part.data_ptr() == place and part.is_contiguous() and part.dtype == first.dtype):
            return torch.cat(list(parts))
        place += part.numel() * part.element_size()
    return first.detach().as_strided((sum(map(len, parts)), *first.shape[1:]), first.stride())
