"""Bias, dropout, residual sum and layer norm between two sublayers, as one Triton kernel each way.

Separately these are six kernels forward and a dozen backward, on float32 tensors. Here a program reads the row of a
token once. It writes the normalized row twice, in float32 for the next residual sum and in the precision of the next
product; the backward pass adds the two gradients on its way. Dropout masks are not stored but drawn again. Sums over
tokens are computed in a fixed order by one more kernel, so the same input gives bit-identical results.

Without Triton this module can be imported, but its kernels cannot be called.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs
# (The values inside a kernel are Triton's own, which have no types in Python.)

from __future__ import annotations  # kernels name Triton's types, and Triton may be missing

from typing import Any

import torch
from torch import Tensor

from polytask.kernels.column_sums import column_sums
from polytask.kernels.row_norm import (
    MAX_WIDTH,
    NO_DROPOUT,
    Draw,
    dropout_factors,
    either,
    normalize,
    normalize_backward,
    num_programs,
    output_gradient,
    read_row,
    row_options,
    write_row,
)
from polytask.kernels.side_stream import current_side_stream, defer_gradients
from polytask.kernels.triton_support import TRITON, jit, tl


def add_and_norm(
    residual_TD: Tensor,
    y_TD: Tensor,
    bias_D: Tensor | None,
    branch_TD: Tensor | None,
    affine: tuple[Tensor, Tensor],
    eps: float,
    dropout: Draw = NO_DROPOUT,
) -> tuple[Tensor, Tensor]:
    """LN(residual + Drop(y + bias) + branch) in float32, and the same in y's precision."""
    assert TRITON, "add_and_norm needs Triton"
    assert residual_TD.shape[-1] <= MAX_WIDTH
    assert dropout.rate == 0.0 or dropout.seed_1 is not None
    if branch_TD is not None:
        branch_TD = branch_TD.to(y_TD.dtype)
    terms = residual_TD, y_TD, bias_D, branch_TD
    full_TD, half_TD = _AddAndNorm.apply(*terms, *affine, dropout.seed_1, eps, dropout.rate, dropout.site)  # type: ignore[no-untyped-call]
    return full_TD, half_TD


class _AddAndNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        residual_TD: Tensor,
        y_TD: Tensor,
        bias_D: Tensor | None,
        branch_TD: Tensor | None,
        scale_D: Tensor,
        shift_D: Tensor,
        seed_1: Tensor | None,
        eps: float,
        dropout: float,
        site: int,
    ) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        residual_TD, y_TD = residual_TD.contiguous(), y_TD.contiguous()
        branch_TD = None if branch_TD is None else branch_TD.contiguous()
        rows, size = y_TD.shape
        full_TD = torch.empty(rows, size, dtype=torch.float32, device=y_TD.device)
        half_TD = torch.empty_like(y_TD)
        stats_T2 = torch.empty(rows, 2, dtype=torch.float32, device=y_TD.device)
        ctx.options = _options(size, bias_D, branch_TD, dropout)
        ctx.numbers = dropout, site
        ctx.side = current_side_stream()
        with torch.cuda.device_of(y_TD):
            _norm_forward[(rows,)](
                *(residual_TD, y_TD, either(bias_D, y_TD), either(branch_TD, y_TD), scale_D, shift_D),
                *(either(seed_1, stats_T2), full_TD, half_TD, stats_T2, eps, *ctx.numbers),
                **ctx.options,
            )
        ctx.save_for_backward(residual_TD, y_TD, bias_D, branch_TD, scale_D, shift_D, seed_1, stats_T2)
        return full_TD, half_TD

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        residual_TD, y_TD, bias_D, branch_TD, scale_D, shift_D, seed_1, stats_T2 = ctx.saved_tensors
        full_TD, half_TD = (None if grad is None else grad.contiguous() for grad in grads)
        if full_TD is None and half_TD is None:
            return (None,) * 10
        rows, size = y_TD.shape
        learns = any(ctx.needs_input_grad[k] for k in (2, 4, 5))
        programs = num_programs(rows, sums=learns)
        residual_grad_TD = torch.empty_like(residual_TD)
        y_grad_TD = torch.empty_like(y_TD)
        branch_grad_TD = None if branch_TD is None else torch.empty_like(branch_TD)
        matrices = 3 if bias_D is not None else 2
        parts_PMD = stats_T2.new_empty(programs if learns else 0, matrices, size)
        with torch.cuda.device_of(y_TD):
            _norm_backward[(programs,)](
                *(either(full_TD, y_TD), either(half_TD, y_TD), residual_TD, y_TD),
                *(either(bias_D, y_TD), either(branch_TD, y_TD), scale_D, either(seed_1, stats_T2), stats_T2),
                *(residual_grad_TD, y_grad_TD, either(branch_grad_TD, y_TD), parts_PMD, rows, *ctx.numbers),
                FULL=full_TD is not None,
                HALF=half_TD is not None,
                MATRICES=matrices if learns else 0,
                **ctx.options,
            )
        sums: list[Tensor | None] = [None, None, None]
        if learns:
            learned = [scale_D, shift_D] if bias_D is None else [scale_D, shift_D, bias_D]
            sums[:matrices] = defer_gradients(
                ctx.side, learned, lambda: [*column_sums(parts_PMD, *(t.dtype for t in learned))], parts_PMD
            )
        scale_grad, shift_grad, bias_grad = sums
        return residual_grad_TD, y_grad_TD, bias_grad, branch_grad_TD, scale_grad, shift_grad, *(None,) * 4


def _options(size: int, bias_D: Tensor | None, branch_TD: Tensor | None, dropout: float) -> dict[str, Any]:
    return {**row_options(size, dropout), "BIASED": bias_D is not None, "BRANCHED": branch_TD is not None}


_jit = jit("rows", "site")


@_jit
def _sum(
    residual,
    y,
    bias_D,
    branch,
    kept_D,
    row,
    SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
    BRANCHED: tl.constexpr,
):
    x_D = read_row(residual, row, SIZE, WIDTH) + (read_row(y, row, SIZE, WIDTH) + bias_D) * kept_D
    if BRANCHED:
        x_D += read_row(branch, row, SIZE, WIDTH)
    return x_D


@_jit
def _norm_forward(
    residual,
    y,
    bias,
    branch,
    scale,
    shift,
    seed,
    full,
    half,
    stats,
    eps,
    dropout,
    site,
    SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
    BIASED: tl.constexpr,
    BRANCHED: tl.constexpr,
    DROPS: tl.constexpr,
):
    row = tl.program_id(0)
    first = row * 0
    bias_D = tl.zeros([WIDTH], tl.float32)
    kept_D = bias_D + 1.0
    if BIASED:
        bias_D = read_row(bias, first, SIZE, WIDTH)
    if DROPS:
        kept_D = dropout_factors(seed, row, site, dropout, WIDTH)
    x_D = _sum(residual, y, bias_D, branch, kept_D, row, SIZE, WIDTH, BRANCHED)
    out_D = normalize(x_D, row, scale, shift, stats, eps, SIZE, WIDTH)
    write_row(full, row, out_D, SIZE, WIDTH)
    write_row(half, row, out_D, SIZE, WIDTH)


@_jit
def _norm_backward(
    full_grad,
    half_grad,
    residual,
    y,
    bias,
    branch,
    scale,
    seed,
    stats,
    residual_grad,
    y_grad,
    branch_grad,
    parts,
    rows,
    dropout,
    site,
    FULL: tl.constexpr,
    HALF: tl.constexpr,
    MATRICES: tl.constexpr,
    SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
    BIASED: tl.constexpr,
    BRANCHED: tl.constexpr,
    DROPS: tl.constexpr,
):
    program = tl.program_id(0)
    row = program
    first = row * 0
    bias_D = tl.zeros([WIDTH], tl.float32)
    kept_D = bias_D + 1.0
    scale_sum_D, shift_sum_D, bias_sum_D = bias_D, bias_D, bias_D
    if BIASED:
        bias_D = read_row(bias, first, SIZE, WIDTH)
    scale_D = read_row(scale, first, SIZE, WIDTH)
    while row < rows:
        grad_D = output_gradient(full_grad, half_grad, row, FULL, HALF, SIZE, WIDTH)
        if DROPS:
            kept_D = dropout_factors(seed, row, site, dropout, WIDTH)
        x_D = _sum(residual, y, bias_D, branch, kept_D, row, SIZE, WIDTH, BRANCHED)
        x_D, x_grad_D = normalize_backward(x_D, grad_D, scale_D, stats, row, SIZE, WIDTH)
        y_grad_D = x_grad_D * kept_D
        write_row(residual_grad, row, x_grad_D, SIZE, WIDTH)
        write_row(y_grad, row, y_grad_D, SIZE, WIDTH)
        if BRANCHED:
            write_row(branch_grad, row, x_grad_D, SIZE, WIDTH)
        if MATRICES > 0:
            scale_sum_D += grad_D * x_D
            shift_sum_D += grad_D
            bias_sum_D += y_grad_D
        row += tl.num_programs(0)
    if MATRICES > 0:
        write_row(parts, program * MATRICES, scale_sum_D, SIZE, WIDTH)
        write_row(parts, program * MATRICES + 1, shift_sum_D, SIZE, WIDTH)
    if MATRICES > 2:
        write_row(parts, program * MATRICES + 2, bias_sum_D, SIZE, WIDTH)
