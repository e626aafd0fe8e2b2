"""`gelu(x + bias)` as Triton kernels; the backward kernel also computes the sums for the bias's gradient.

torch reads a gradient once more to sum it over tokens, which takes a fifth of the time of the activation. The forward
kernel stores the slope instead of x, because it has computed most of it anyway: the backward pass is then one
multiplication. The same input gives bit-identical results. Without Triton this module can be imported, but its kernels
cannot be called.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs
# (The values inside a kernel are Triton's own, which have no types in Python.)

from __future__ import annotations  # kernels name Triton's types, and Triton may be missing

from typing import Any

import torch
from torch import Tensor

from polytask.kernels.column_sums import column_sums
from polytask.kernels.side_stream import current_side_stream, defer_gradients
from polytask.kernels.triton_support import TRITON, jit, tl

# Of a program. Module attributes, so that a benchmark can try other values.
ROWS, COLUMNS, WARPS = 32, 128, 4


def bias_gelu(x_TF: Tensor, bias_F: Tensor) -> Tensor:
    """`gelu(x + bias)`: the exact form, not the approximation by tanh."""
    assert TRITON, "bias_gelu needs Triton"
    out_TF: Tensor = _BiasGelu.apply(x_TF, bias_F)  # type: ignore[no-untyped-call]
    return out_TF


class _BiasGelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_TF: Tensor, bias_F: Tensor) -> Tensor:
        x_TF = x_TF.contiguous()
        out_TF = torch.empty_like(x_TF)
        learns = any(ctx.needs_input_grad)
        slope_TF = torch.empty_like(x_TF) if learns else x_TF
        ctx.save_for_backward(slope_TF, bias_F)
        ctx.side = current_side_stream()
        _launch(_gelu_forward, x_TF, bias_F, out_TF, slope_TF, LEARNS=learns)
        return out_TF

    @staticmethod
    def backward(ctx: Any, grad_TF: Tensor) -> tuple[Tensor, Tensor | None]:
        slope_TF, bias_F = ctx.saved_tensors
        x_grad_TF = torch.empty_like(slope_TF)
        rows, size = slope_TF.shape
        learns = ctx.needs_input_grad[1]
        parts_P1F = slope_TF.new_empty(-(-rows // ROWS) if learns else 0, 1, size, dtype=torch.float32)
        _launch(_gelu_backward, grad_TF.contiguous(), slope_TF, x_grad_TF, parts_P1F, SUMS=learns)
        if not learns:
            return x_grad_TF, None
        (bias_grad,) = defer_gradients(ctx.side, [bias_F], lambda: [*column_sums(parts_P1F, bias_F.dtype)], parts_P1F)
        return x_grad_TF, bias_grad


def _launch(kernel: Any, *tensors: Tensor, **options: Any) -> None:
    rows, size = tensors[0].shape
    with torch.cuda.device_of(tensors[0]):
        kernel[(-(-size // COLUMNS), -(-rows // ROWS))](
            *(*tensors, rows), SIZE=size, ROWS=ROWS, COLUMNS=COLUMNS, num_warps=WARPS, **options
        )


_jit = jit("rows")


@_jit
def _tile(rows, SIZE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """The addresses of a program's elements, which of them exist, and its columns."""
    here = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (here < rows)[:, None]
    if SIZE % COLUMNS != 0:
        inside = inside & (columns < SIZE)[None, :]
    return here.to(tl.int64)[:, None] * SIZE + columns[None, :], inside, columns


@_jit
def _normal_cdf(x, density):
    """The normal distribution function of x to 1e-7, given exp(-x^2 / 2): Abramowitz & Stegun 7.1.26.

    It needs only one division more. With erf, these kernels took 1.8 times as long as reading and writing memory.
    """
    t = 1.0 / (1.0 + 0.3275911 * 0.7071067811865476 * tl.abs(x))
    tail = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    tail = 0.5 * tail * density
    return tl.where(x >= 0, 1.0 - tail, tail)


@_jit
def _gelu_forward(
    x,
    bias,
    out,
    slope,
    rows,
    LEARNS: tl.constexpr,
    SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    places, inside, columns = _tile(rows, SIZE, ROWS, COLUMNS)
    bias_F = tl.load(bias + columns, mask=columns < SIZE, other=0.0).to(tl.float32)
    x_TF = tl.load(x + places, mask=inside, other=0.0).to(tl.float32) + bias_F[None, :]
    density_TF = tl.exp(-0.5 * x_TF * x_TF)
    cdf_TF = _normal_cdf(x_TF, density_TF)
    tl.store(out + places, (x_TF * cdf_TF).to(out.dtype.element_ty), mask=inside)
    if LEARNS:
        slope_TF = cdf_TF + x_TF * density_TF * 0.3989422804014327
        tl.store(slope + places, slope_TF.to(slope.dtype.element_ty), mask=inside)


@_jit
def _gelu_backward(
    grad,
    slope,
    x_grad,
    parts,
    rows,
    SUMS: tl.constexpr,
    SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    places, inside, columns = _tile(rows, SIZE, ROWS, COLUMNS)
    grad_TF = tl.load(grad + places, mask=inside, other=0.0).to(tl.float32)
    grad_TF *= tl.load(slope + places, mask=inside, other=0.0).to(tl.float32)
    tl.store(x_grad + places, grad_TF.to(x_grad.dtype.element_ty), mask=inside)
    if SUMS:
        sums_F = tl.sum(grad_TF, 0)
        tl.store(parts + tl.program_id(1).to(tl.int64) * SIZE + columns, sums_F, mask=columns < SIZE)
