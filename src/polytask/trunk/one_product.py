"""Several linear maps of the same input as one product. Knows tensors only.

A GPU takes one large product faster than three small ones. Weights that lie one after another in memory, as bf16 copies
do (training/half.py), are one matrix as they are; others are put together first.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polytask.trunk.column_sums import column_sums
from polytask.trunk.compiling import kernels_compile


def one_product(x_TD: Tensor, maps: Sequence[nn.Linear]) -> Tensor:
    """The maps' outputs side by side."""
    device = x_TD.device.type
    if torch.is_autocast_enabled(device):
        x_TD = x_TD.to(torch.get_autocast_dtype(device))
    out_TO: Tensor = _OneProduct.apply(x_TD, *(m.weight for m in maps), *(m.bias for m in maps))  # type: ignore[no-untyped-call]
    return out_TO


class _OneProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_TD: Tensor, *weights_biases: Tensor) -> Tensor:
        half = len(weights_biases) // 2
        weight_OD, bias_O = (joined(part).to(x_TD.dtype) for part in (weights_biases[:half], weights_biases[half:]))
        ctx.save_for_backward(x_TD, weight_OD)
        ctx.kinds = [(len(t), t.dtype) for t in weights_biases]
        return F.linear(x_TD, weight_OD, bias_O)

    @staticmethod
    def backward(ctx: Any, grad_TO: Tensor) -> tuple[Tensor | None, ...]:
        x_TD, weight_OD = ctx.saved_tensors
        grad_TO = grad_TO.contiguous()
        half = len(ctx.kinds) // 2
        grads: list[Tensor | None] = [None] * len(ctx.kinds)
        if any(ctx.needs_input_grad[1 : 1 + half]):
            grads[:half] = (grad_TO.t() @ x_TD).split([rows for rows, _ in ctx.kinds[:half]])
        if any(ctx.needs_input_grad[1 + half :]):
            grads[half:] = sums(grad_TO).split([rows for rows, _ in ctx.kinds[half:]])
        cast = (None if g is None else g.to(dtype) for g, (_, dtype) in zip(grads, ctx.kinds, strict=True))
        return grad_TO @ weight_OD if ctx.needs_input_grad[0] else None, *cast


def sums(grad_TO: Tensor) -> Tensor:
    if grad_TO.is_cuda and kernels_compile():
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
