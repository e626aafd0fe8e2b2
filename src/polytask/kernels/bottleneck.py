"""The bottleneck `W_D gelu(W_E x + b_E)` as one Triton kernel each way.

Separately these are three kernels forward and four backward, of which the products fill only a small part of a GPU.
Here a program computes all of it for a few tokens and reads the weights from the cache. The backward kernel also
computes the sums for the bias's gradient. Without Triton this module can be imported, but its kernels cannot be called.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs
# (The values inside a kernel are Triton's own, which have no types in Python.)

from __future__ import annotations  # kernels name Triton's types, and Triton may be missing

from typing import Any

import torch
from torch import Tensor

from polytask.kernels.bias_gelu import _normal_cdf
from polytask.kernels.column_sums import column_sums
from polytask.kernels.side_stream import Grads, current_side_stream, defer_gradients
from polytask.kernels.triton_support import TRITON, jit, shared_memory, tl

MAX_WIDTH = 256  # of the bottleneck
MAX_ROWS = 4096  # with more tokens, separate products fill a GPU
ROWS, WARPS = 16, 4  # tokens and warps of a program
STEPS = (256, 128, 64, 32)
"""Hidden dimensions per iteration: as many as fit into shared memory, because each iteration waits for memory once."""
STAGES = 3
SPARED = 8192  # bytes of shared memory for everything else


def bottleneck_fits(x_TD: Tensor, down_sD: Tensor) -> bool:
    return len(x_TD) <= MAX_ROWS and len(down_sD) <= MAX_WIDTH


def bottleneck(x_TD: Tensor, down_sD: Tensor, bias_s: Tensor, up_Ds: Tensor) -> tuple[Tensor, Tensor]:
    """x itself and `W_D gelu(W_E x + b_E)`. x is returned so that the kernel adds the gradients of both."""
    assert TRITON, "bottleneck needs Triton"
    same_TD, change_TD = _Bottleneck.apply(x_TD, down_sD, bias_s, up_Ds)  # type: ignore[no-untyped-call]
    return same_TD, change_TD


class _Bottleneck(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_TD: Tensor, down_sD: Tensor, bias_s: Tensor, up_Ds: Tensor) -> tuple[Tensor, Tensor]:
        x_TD = x_TD.contiguous()
        hidden_Ts = x_TD.new_empty(len(x_TD), len(down_sD))
        active_Ts, change_TD = torch.empty_like(hidden_Ts), torch.empty_like(x_TD)
        weights = down_sD.to(x_TD.dtype), up_Ds.to(x_TD.dtype)
        _launch(_bottleneck_forward, hidden_Ts, x_TD, weights[0], bias_s, weights[1], hidden_Ts, active_Ts, change_TD)
        ctx.save_for_backward(x_TD, hidden_Ts, active_Ts, *weights)
        ctx.learning = down_sD, bias_s, up_Ds
        ctx.side = current_side_stream()
        return x_TD.view_as(x_TD), change_TD

    @staticmethod
    def backward(ctx: Any, same_TD: Tensor, grad_TD: Tensor) -> tuple[Tensor | None, ...]:
        x_TD, hidden_Ts, active_Ts, down_sD, up_Ds = ctx.saved_tensors
        grad_TD = grad_TD.contiguous()
        x_grad_TD, hidden_grad_Ts = torch.empty_like(x_TD), torch.empty_like(hidden_Ts)
        parts_P1s = grad_TD.new_empty(-(-len(x_TD) // ROWS), 1, len(down_sD), dtype=torch.float32)
        tensors = grad_TD, same_TD.contiguous(), hidden_Ts, down_sD, up_Ds, hidden_grad_Ts, x_grad_TD, parts_P1s
        _launch(_bottleneck_backward, hidden_Ts, *tensors)
        down, bias, up = ctx.learning

        def gradients() -> Grads:
            (sums_s,) = column_sums(parts_P1s, bias.dtype)
            return [(hidden_grad_Ts.t() @ x_TD).to(down.dtype), sums_s, (grad_TD.t() @ active_Ts).to(up.dtype)]

        if not any(ctx.needs_input_grad[1:]):
            return x_grad_TD, None, None, None
        return x_grad_TD, *defer_gradients(
            ctx.side, [down, bias, up], gradients, hidden_grad_Ts, grad_TD, x_TD, active_Ts, parts_P1s
        )


def _launch(kernel: Any, hidden_Ts: Tensor, *tensors: Tensor) -> None:
    (rows, inner), size = hidden_Ts.shape, tensors[0].shape[1]
    width = max(16, 1 << (inner - 1).bit_length())
    with torch.cuda.device_of(hidden_Ts):
        kernel[(-(-rows // ROWS),)](
            *(*tensors, rows),
            SIZE=size,
            INNER=inner,
            WIDTH=width,
            ROWS=ROWS,
            STEP=step_of(width, hidden_Ts.element_size(), shared_memory(hidden_Ts.device)),
            PRECISION="ieee" if hidden_Ts.dtype == torch.float32 else "tf32",
            num_warps=WARPS,
            num_stages=STAGES,
        )


def step_of(width: int, element: int, memory: int) -> int:
    """The largest step that fits: while one step is computed, the data of the next ones is loaded."""
    waiting = STAGES - 1
    fits = [step for step in STEPS if waiting * (ROWS + width) * step * element + SPARED <= memory]
    return fits[0] if fits else STEPS[-1]


_jit = jit("rows")


@_jit
def _places(rows, SIZE: tl.constexpr, INNER: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr):
    """Addresses of a program's rows in matrices of SIZE and of INNER columns, masks for both, and the inner columns."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inner = tl.arange(0, WIDTH)
    there = (row < rows)[:, None]
    row = row.to(tl.int64)[:, None]
    return row * SIZE, row * INNER + inner[None, :], there, there & (inner < INNER)[None, :], inner


@_jit
def _bottleneck_forward(
    x,
    down,
    bias,
    up,
    hidden,
    active,
    change,
    rows,
    SIZE: tl.constexpr,
    INNER: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    STEP: tl.constexpr,
    PRECISION: tl.constexpr,
):
    outer_rows, inner_places, there, inside, inner = _places(rows, SIZE, INNER, WIDTH, ROWS)
    known = inner < INNER
    hidden_Ts = tl.zeros([ROWS, WIDTH], tl.float32)
    for start in range(0, SIZE, STEP):
        columns = start + tl.arange(0, STEP)
        x_TS = tl.load(x + outer_rows + columns[None, :], mask=there & (columns < SIZE)[None, :], other=0.0)
        mask_Ss = (columns < SIZE)[:, None] & known[None, :]
        down_Ss = tl.load(down + inner[None, :] * SIZE + columns[:, None], mask=mask_Ss, other=0.0)
        hidden_Ts = tl.dot(x_TS, down_Ss, hidden_Ts, input_precision=PRECISION)
    hidden_Ts += tl.load(bias + inner, mask=known, other=0.0).to(tl.float32)[None, :]
    tl.store(hidden + inner_places, hidden_Ts.to(hidden.dtype.element_ty), mask=inside)
    active_Ts = (hidden_Ts * _normal_cdf(hidden_Ts, tl.exp(-0.5 * hidden_Ts * hidden_Ts))).to(active.dtype.element_ty)
    tl.store(active + inner_places, active_Ts, mask=inside)
    for start in range(0, SIZE, STEP):
        columns = start + tl.arange(0, STEP)
        mask_sS = known[:, None] & (columns < SIZE)[None, :]
        up_sS = tl.load(up + columns[None, :] * INNER + inner[:, None], mask=mask_sS, other=0.0)
        change_TS = tl.dot(active_Ts, up_sS, input_precision=PRECISION)
        places = change + outer_rows + columns[None, :]
        tl.store(places, change_TS.to(change.dtype.element_ty), mask=there & (columns < SIZE)[None, :])


@_jit
def _bottleneck_backward(
    grad,
    same,
    hidden,
    down,
    up,
    hidden_grad,
    x_grad,
    parts,
    rows,
    SIZE: tl.constexpr,
    INNER: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    STEP: tl.constexpr,
    PRECISION: tl.constexpr,
):
    outer_rows, inner_places, there, inside, inner = _places(rows, SIZE, INNER, WIDTH, ROWS)
    known = inner < INNER
    grad_Ts = tl.zeros([ROWS, WIDTH], tl.float32)
    for start in range(0, SIZE, STEP):
        columns = start + tl.arange(0, STEP)
        grad_TS = tl.load(grad + outer_rows + columns[None, :], mask=there & (columns < SIZE)[None, :], other=0.0)
        mask_Ss = (columns < SIZE)[:, None] & known[None, :]
        up_Ss = tl.load(up + columns[:, None] * INNER + inner[None, :], mask=mask_Ss, other=0.0)
        grad_Ts = tl.dot(grad_TS, up_Ss, grad_Ts, input_precision=PRECISION)
    hidden_Ts = tl.load(hidden + inner_places, mask=inside, other=0.0).to(tl.float32)
    density_Ts = tl.exp(-0.5 * hidden_Ts * hidden_Ts)
    grad_Ts *= _normal_cdf(hidden_Ts, density_Ts) + hidden_Ts * density_Ts * 0.3989422804014327
    half_Ts = grad_Ts.to(hidden_grad.dtype.element_ty)
    tl.store(hidden_grad + inner_places, half_Ts, mask=inside)
    tl.store(parts + tl.program_id(0) * INNER + inner, tl.sum(grad_Ts, 0), mask=known)
    for start in range(0, SIZE, STEP):
        columns = start + tl.arange(0, STEP)
        mask_sS = known[:, None] & (columns < SIZE)[None, :]
        down_sS = tl.load(down + inner[:, None] * SIZE + columns[None, :], mask=mask_sS, other=0.0)
        outside = there & (columns < SIZE)[None, :]
        x_grad_TS = tl.load(same + outer_rows + columns[None, :], mask=outside, other=0.0).to(tl.float32)
        x_grad_TS = tl.dot(half_Ts, down_sS, x_grad_TS, input_precision=PRECISION)
        tl.store(x_grad + outer_rows + columns[None, :], x_grad_TS.to(x_grad.dtype.element_ty), mask=outside)
