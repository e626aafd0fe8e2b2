"""Linear maps of the same input as one product, whose weights' gradients can be computed on the side stream.

A GPU computes one large product faster than three small ones. Weights that are adjacent in memory, as the bf16 copies
of half_weights.py are, form one matrix without a copy; others are concatenated first.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from polytask.kernels.column_sums import column_sums
from polytask.kernels.side_stream import Grads, current_side_stream, defer_gradients
from polytask.kernels.triton_support import kernels_run


class ZeroPadding(NamedTuple):
    """Zeros that make the sizes of a weight multiples that a GPU computes fast: rows behind each block, and columns.

    The product itself adds and removes them, because a gradient can be computed on the side stream only if nothing is
    done to it afterwards (side_stream.py).
    """

    blocks: int = 1
    rows: int = 0
    columns: int = 0

    def pad(self, t: Tensor) -> Tensor:
        """Pads a weight, or a bias, which has no columns."""
        more = (0, self.columns, 0, self.rows)[-2 * t.ndim :]
        return F.pad(t.unflatten(0, (self.blocks, -1)), more).flatten(0, 1) if any(more) else t

    def unpad(self, t: Tensor) -> Tensor:
        """Removes the zeros from a padded weight or bias, or from its gradient."""
        if not any(self[1:]):
            return t
        kept: Tensor = t.unflatten(0, (self.blocks, -1))[:, : -self.rows or None]
        if t.ndim > 1:
            kept = kept[..., : -self.columns or None]
        return kept.flatten(0, 1).contiguous()


NO_PADDING = ZeroPadding()


def one_product(
    x_TD: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor] = (), padding: ZeroPadding = NO_PADDING
) -> Tensor:
    """The concatenated outputs of the linear maps."""
    device = x_TD.device.type
    if torch.is_autocast_enabled(device):
        x_TD = x_TD.to(torch.get_autocast_dtype(device))
    out_TO: Tensor = _OneProduct.apply(x_TD, padding, len(weights), *weights, *biases)  # type: ignore[no-untyped-call]
    return out_TO


class _OneProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_TD: Tensor, padding: ZeroPadding, maps: int, *parts: Tensor) -> Tensor:
        weights, biases = parts[:maps], parts[maps:]
        weight_OD = padding.pad(joined(weights).to(x_TD.dtype))
        ctx.save_for_backward(x_TD, weight_OD)
        ctx.weights, ctx.biases, ctx.padding = weights, biases, padding
        ctx.side = current_side_stream()
        return F.linear(x_TD, weight_OD, padding.pad(joined(biases).to(x_TD.dtype)) if biases else None)

    @staticmethod
    def backward(ctx: Any, grad_TO: Tensor) -> tuple[Tensor | None, ...]:
        x_TD, weight_OD = ctx.saved_tensors
        grad_TO = grad_TO.contiguous()
        weights, biases = ctx.weights, ctx.biases
        parts = *weights, *biases
        needed = ctx.needs_input_grad[3:]
        learns = [any(needed[: len(weights)]), any(needed[len(weights) :])]

        def gradients() -> Grads:
            grads: Grads = [None] * len(parts)
            if learns[0]:
                grads[: len(weights)] = split_rows(ctx.padding.unpad(grad_TO.t() @ x_TD), weights)
            if learns[1]:
                grads[len(weights) :] = split_rows(ctx.padding.unpad(sum_rows(grad_TO)), biases)
            return grads

        learned = gradients() if not any(learns) else defer_gradients(ctx.side, [*parts], gradients, grad_TO, x_TD)
        return grad_TO @ weight_OD if ctx.needs_input_grad[0] else None, None, None, *learned


def split_rows(grad_O: Tensor, parts: Sequence[Tensor]) -> Grads:
    """The rows of each part, in its precision."""
    pieces = grad_O.split([len(part) for part in parts])
    return [piece.to(part.dtype) for piece, part in zip(pieces, parts, strict=True)]


def sum_rows(grad_TO: Tensor) -> Tensor:
    if kernels_run(grad_TO.device):
        return column_sums(grad_TO[:, None], grad_TO.dtype)[0]
    return grad_TO.sum(0)


def joined(parts: Sequence[Tensor]) -> Tensor:
    """All their rows as one tensor: a view if they are adjacent in memory, otherwise a copy."""
    first, place = parts[0], parts[0].data_ptr()
    for part in parts:
        same_memory = part.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        if not (same_memory and part.data_ptr() == place and part.is_contiguous() and part.dtype == first.dtype):
            return torch.cat(list(parts))
        place += part.numel() * part.element_size()
    return first.detach().as_strided((sum(map(len, parts)), *first.shape[1:]), first.stride())
