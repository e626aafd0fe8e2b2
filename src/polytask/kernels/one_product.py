"""Linear maps of the same input as one product, whose weights' gradients can be made beside. Knows tensors only.

A GPU takes one large product faster than three small ones. Weights that lie one after another in memory, as bf16 copies
do (training/half.py), are one matrix as they are; others are put together first.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from polytask.kernels.column_sums import column_sums
from polytask.kernels.side_stream import Grads, defer_gradients
from polytask.kernels.triton_support import kernels_run


class ZeroPadding(NamedTuple):
    """Zeros that make a weight as large as a GPU likes it: behind each of so many blocks of its rows, and its columns.

    The product does it itself, rather than whoever calls it: a gradient can only be made beside if nothing is to
    be done to it afterwards (encoder/beside.py).
    """

    blocks: int = 1
    rows: int = 0
    columns: int = 0

    def fill(self, t: Tensor) -> Tensor:
        """Of a weight, or of a bias, which has no columns."""
        more = (0, self.columns, 0, self.rows)[-2 * t.ndim :]
        return F.pad(t.unflatten(0, (self.blocks, -1)), more).flatten(0, 1) if any(more) else t

    def cut(self, t: Tensor) -> Tensor:
        if not any(self[1:]):
            return t
        kept: Tensor = t.unflatten(0, (self.blocks, -1))[:, : -self.rows or None]
        if t.ndim > 1:
            kept = kept[..., : -self.columns or None]
        return kept.flatten(0, 1).contiguous()


NOTHING = ZeroPadding()


def one_product(
    x_TD: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor] = (), filling: ZeroPadding = NOTHING
) -> Tensor:
    """The maps' outputs side by side."""
    device = x_TD.device.type
    if torch.is_autocast_enabled(device):
        x_TD = x_TD.to(torch.get_autocast_dtype(device))
    out_TO: Tensor = _OneProduct.apply(x_TD, filling, len(weights), *weights, *biases)  # type: ignore[no-untyped-call]
    return out_TO


class _OneProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_TD: Tensor, filling: ZeroPadding, maps: int, *parts: Tensor) -> Tensor:
        weights, biases = parts[:maps], parts[maps:]
        weight_OD = filling.fill(joined(weights).to(x_TD.dtype))
        ctx.save_for_backward(x_TD, weight_OD)
        ctx.weights, ctx.biases, ctx.filling = weights, biases, filling
        return F.linear(x_TD, weight_OD, filling.fill(joined(biases).to(x_TD.dtype)) if biases else None)

    @staticmethod
    def backward(ctx: Any, grad_TO: Tensor) -> tuple[Tensor | None, ...]:
        x_TD, weight_OD = ctx.saved_tensors
        grad_TO = grad_TO.contiguous()
        weights, biases = ctx.weights, ctx.biases
        needed = ctx.needs_input_grad[3:]
        learns = [any(needed[: len(weights)]), any(needed[len(weights) :])]

        def gradients() -> Grads:
            grads: Grads = [None] * (len(weights) + len(biases))
            if learns[0]:
                grads[: len(weights)] = cut(ctx.filling.cut(grad_TO.t() @ x_TD), weights)
            if learns[1]:
                grads[len(weights) :] = cut(ctx.filling.cut(sums(grad_TO)), biases)
            return grads

        learned = defer_gradients([*weights, *biases], gradients, grad_TO, x_TD) if any(learns) else gradients()
        return grad_TO @ weight_OD if ctx.needs_input_grad[0] else None, None, None, *learned


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
