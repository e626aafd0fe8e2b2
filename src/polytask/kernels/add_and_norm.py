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

from typing import Any, NamedTuple

import torch
from torch import Tensor

from polytask.kernels.column_sums import column_sums
from polytask.kernels.side_stream import current_side_stream, defer_gradients
from polytask.kernels.triton_support import TRITON, jit, tl

MAX_WIDTH = 4096
# Module attributes, so that a benchmark can try other values.
PROGRAMS = 660  # at most, in a backward pass: registers allow five on each of the 132 multiprocessors of an H200
ROWS = 4  # at least, of a program
LANE = 256  # columns of a warp


class Draw(NamedTuple):
    """The draw of a dropout mask."""

    rate: float = 0.0
    seed_1: Tensor | None = None
    site: int = 0
    """Tells draws from the same seed apart."""


NO_DROPOUT = Draw()


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
                *(residual_TD, y_TD, _or(bias_D, y_TD), _or(branch_TD, y_TD), scale_D, shift_D, _or(seed_1, stats_T2)),
                *(full_TD, half_TD, stats_T2, eps, *ctx.numbers),
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
        programs = min(PROGRAMS, -(-rows // ROWS)) if learns else rows
        residual_grad_TD = torch.empty_like(residual_TD)
        y_grad_TD = torch.empty_like(y_TD)
        branch_grad_TD = None if branch_TD is None else torch.empty_like(branch_TD)
        matrices = 3 if bias_D is not None else 2
        parts_PMD = stats_T2.new_empty(programs if learns else 0, matrices, size)
        with torch.cuda.device_of(y_TD):
            _norm_backward[(programs,)](
                *(_or(full_TD, y_TD), _or(half_TD, y_TD), residual_TD, y_TD, _or(bias_D, y_TD), _or(branch_TD, y_TD)),
                *(scale_D, _or(seed_1, stats_T2), stats_T2),
                *(residual_grad_TD, y_grad_TD, _or(branch_grad_TD, y_TD), parts_PMD, rows, *ctx.numbers),
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


def _or(tensor: Tensor | None, other: Tensor) -> Tensor:
    """The tensor, or another one for an argument that the kernel does not read: an argument cannot be None."""
    return other if tensor is None else tensor


def _options(size: int, bias_D: Tensor | None, branch_TD: Tensor | None, dropout: float) -> dict[str, Any]:
    width = max(16, 1 << (size - 1).bit_length())
    return {
        "SIZE": size,
        "WIDTH": width,
        "BIASED": bias_D is not None,
        "BRANCHED": branch_TD is not None,
        "DROPS": dropout > 0,
        "num_warps": max(1, width // LANE),
    }


_jit = jit("rows", "site")


@_jit
def _row(matrix, row, SIZE: tl.constexpr, WIDTH: tl.constexpr):
    """The addresses of a row's elements. A thread has four consecutive ones in every precision: with eight of some
    tensors, values would have to move between threads."""
    start = matrix + row.to(tl.int64) * SIZE + tl.arange(0, WIDTH)
    if SIZE % 4 == 0:
        start = tl.multiple_of(start, 4 * matrix.dtype.element_ty.primitive_bitwidth // 8)
    return start


@_jit
def _read(matrix, row, SIZE: tl.constexpr, WIDTH: tl.constexpr):
    inside = tl.arange(0, WIDTH) < SIZE
    return tl.load(_row(matrix, row, SIZE, WIDTH), mask=inside, other=0.0).to(tl.float32)


@_jit
def _write(matrix, row, x, SIZE: tl.constexpr, WIDTH: tl.constexpr):
    inside = tl.arange(0, WIDTH) < SIZE
    tl.store(_row(matrix, row, SIZE, WIDTH), x.to(matrix.dtype.element_ty), mask=inside)


@_jit
def _kept(seed, row, site, dropout, WIDTH: tl.constexpr):
    """1 / (1 - dropout) for elements that are kept, else 0; depends on the seed, the row, the column and the site."""
    # The generator draws four numbers at a time, here for four consecutive columns. Seven rounds are the fewest that
    # are known to pass all tests of randomness (Salmon et al. 2011).
    zero = tl.zeros([WIDTH // 4], tl.int32)
    a, b, c, d = tl.philox(tl.load(seed), zero + row.to(tl.int32), tl.arange(0, WIDTH // 4), zero + site, zero, 7)
    drawn = tl.reshape(tl.join(tl.join(a, c), tl.join(b, d)), [WIDTH])
    return tl.where(drawn >= tl.cast(dropout * 4294967296.0, tl.uint32), 1.0 / (1.0 - dropout), 0.0)


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
    x_D = _read(residual, row, SIZE, WIDTH) + (_read(y, row, SIZE, WIDTH) + bias_D) * kept_D
    if BRANCHED:
        x_D += _read(branch, row, SIZE, WIDTH)
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
    inside = tl.arange(0, WIDTH) < SIZE
    bias_D = tl.zeros([WIDTH], tl.float32)
    kept_D = bias_D + 1.0
    if BIASED:
        bias_D = _read(bias, first, SIZE, WIDTH)
    if DROPS:
        kept_D = _kept(seed, row, site, dropout, WIDTH)
    x_D = _sum(residual, y, bias_D, branch, kept_D, row, SIZE, WIDTH, BRANCHED)
    mean = tl.sum(x_D, 0) / SIZE
    x_D = tl.where(inside, x_D - mean, 0.0)
    over = 1.0 / tl.sqrt(tl.sum(x_D * x_D, 0) / SIZE + eps)
    out_D = x_D * over * _read(scale, first, SIZE, WIDTH) + _read(shift, first, SIZE, WIDTH)
    _write(full, row, out_D, SIZE, WIDTH)
    _write(half, row, out_D, SIZE, WIDTH)
    tl.store(stats + row * 2, mean)
    tl.store(stats + row * 2 + 1, over)


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
    inside = tl.arange(0, WIDTH) < SIZE
    bias_D = tl.zeros([WIDTH], tl.float32)
    kept_D = bias_D + 1.0
    scale_sum_D, shift_sum_D, bias_sum_D = bias_D, bias_D, bias_D
    if BIASED:
        bias_D = _read(bias, first, SIZE, WIDTH)
    scale_D = _read(scale, first, SIZE, WIDTH)
    while row < rows:
        grad_D = tl.zeros([WIDTH], tl.float32)
        if FULL:
            grad_D += _read(full_grad, row, SIZE, WIDTH)
        if HALF:
            grad_D += _read(half_grad, row, SIZE, WIDTH)
        if DROPS:
            kept_D = _kept(seed, row, site, dropout, WIDTH)
        x_D = _sum(residual, y, bias_D, branch, kept_D, row, SIZE, WIDTH, BRANCHED)
        mean, over = tl.load(stats + row * 2), tl.load(stats + row * 2 + 1)
        x_D = tl.where(inside, (x_D - mean) * over, 0.0)
        scaled_D = grad_D * scale_D
        along = tl.sum(scaled_D * x_D, 0) / SIZE
        level = tl.sum(scaled_D, 0) / SIZE
        x_grad_D = (scaled_D - x_D * along - level) * over
        y_grad_D = x_grad_D * kept_D
        _write(residual_grad, row, x_grad_D, SIZE, WIDTH)
        _write(y_grad, row, y_grad_D, SIZE, WIDTH)
        if BRANCHED:
            _write(branch_grad, row, x_grad_D, SIZE, WIDTH)
        if MATRICES > 0:
            scale_sum_D += grad_D * x_D
            shift_sum_D += grad_D
            bias_sum_D += y_grad_D
        row += tl.num_programs(0)
    if MATRICES > 0:
        _write(parts, program * MATRICES, scale_sum_D, SIZE, WIDTH)
        _write(parts, program * MATRICES + 1, shift_sum_D, SIZE, WIDTH)
    if MATRICES > 2:
        _write(parts, program * MATRICES + 2, bias_sum_D, SIZE, WIDTH)
