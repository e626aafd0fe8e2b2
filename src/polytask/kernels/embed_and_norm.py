"""The encoder's embeddings as Triton kernels: three lookups, their sum, layer norm and dropout.

Forward, one kernel: a program computes one token and writes its row twice, in float32 for the first residual sum and in
the precision of the first product. Backward, one kernel computes the gradient of the sum, and the partial sums of
gradients that have few rows: the norm's vectors, and the one or two segments. The gradient of a position is then the
sum of one row of each sequence that is long enough; only words need a sort, which torch does. Every sum is computed in
a fixed order, so the same input gives bit-identical results. Nothing depends on lengths that the host would have to
know, so all of it can be captured in a CUDA graph, also with empty sequences.

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
from polytask.kernels.triton_support import TRITON, jit, tl

SUMMED_SEGMENTS = 2  # at most, for the norm's backward kernel to sum their gradients
# Module attributes, so that a benchmark can try other values.
SEQUENCES, COLUMNS, WARPS = 32, 128, 4  # of one iteration of a program for one position


def embed_and_norm(
    tables: tuple[Tensor, Tensor, Tensor],
    ids: tuple[Tensor | None, Tensor, Tensor],
    cu_seqlens_S1: Tensor,
    affine: tuple[Tensor, Tensor],
    eps: float,
    half: torch.dtype,
    dropout: Draw = NO_DROPOUT,
) -> tuple[Tensor, Tensor]:
    """Drop(LN(words + segments + positions)) in float32, and the same in `half`.

    `tables` and `ids` are those of words, segments and positions; without ids, the table of words has one row for each
    token. Positions must count from 0 in each sequence: the backward pass relies on it. Tokens behind the last sequence
    may have any position.
    """
    assert TRITON, "embed_and_norm needs Triton"
    assert tables[0].shape[-1] <= MAX_WIDTH
    assert dropout.rate == 0.0 or dropout.seed_1 is not None
    full_TD, half_TD = _EmbedAndNorm.apply(  # type: ignore[no-untyped-call]
        *tables, *affine, *ids, cu_seqlens_S1, dropout.seed_1, eps, half, dropout.rate
    )
    return full_TD, half_TD


class _EmbedAndNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        words_VD: Tensor,
        segments_GD: Tensor,
        positions_PD: Tensor,
        scale_D: Tensor,
        shift_D: Tensor,
        token_ids_T: Tensor | None,
        segment_ids_T: Tensor,
        position_ids_T: Tensor,
        cu_seqlens_S1: Tensor,
        seed_1: Tensor | None,
        eps: float,
        half: torch.dtype,
        dropout: float,
    ) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        ctx.row_per_token = token_ids_T is None
        if token_ids_T is None:
            token_ids_T = torch.arange(len(words_VD), device=words_VD.device)
        tables = [t.contiguous() for t in (words_VD, segments_GD, positions_PD)]
        ids = [t.contiguous() for t in (token_ids_T, segment_ids_T, position_ids_T)]
        rows, size = len(token_ids_T), words_VD.shape[-1]
        full_TD = torch.empty(rows, size, dtype=torch.float32, device=words_VD.device)
        half_TD = torch.empty_like(full_TD, dtype=half)
        stats_T2 = full_TD.new_empty(rows, 2)
        ctx.options = row_options(size, dropout)
        ctx.dropout = dropout
        with torch.cuda.device_of(words_VD):
            _embed_forward[(rows,)](
                *(*tables, *ids, scale_D, shift_D, either(seed_1, stats_T2), full_TD, half_TD, stats_T2, eps, dropout),
                **ctx.options,
            )
        ctx.save_for_backward(*tables, *ids, cu_seqlens_S1, scale_D, shift_D, seed_1, stats_T2)
        return full_TD, half_TD

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        *known, cu_seqlens_S1, scale_D, shift_D, seed_1, stats_T2 = ctx.saved_tensors
        words_VD, segments_GD, positions_PD, token_ids_T, segment_ids_T, position_ids_T = known
        full_TD, half_TD = (None if grad is None else grad.contiguous() for grad in grads)
        if full_TD is None and half_TD is None:
            return (None,) * 13
        words_learn, segments_learn, positions_learn, *norm_learns = ctx.needs_input_grad[:5]
        summed = len(segments_GD) if segments_learn and len(segments_GD) <= SUMMED_SEGMENTS else 0
        matrices = 2 + summed if summed or any(norm_learns) else 0
        wanted = words_learn or positions_learn or (segments_learn and not summed)
        rows, size = len(token_ids_T), words_VD.shape[-1]
        programs = num_programs(rows, sums=matrices > 0)
        x_grad_TD = stats_T2.new_empty(rows if wanted else 0, size)
        parts_PMD = stats_T2.new_empty(programs if matrices else 0, matrices, size)
        words_grad = segments_grad = positions_grad = scale_grad = shift_grad = None
        with torch.cuda.device_of(words_VD):
            _embed_backward[(programs,)](
                *(*known, either(full_TD, stats_T2), either(half_TD, stats_T2), scale_D, either(seed_1, stats_T2)),
                *(stats_T2, x_grad_TD, parts_PMD, rows, ctx.dropout),
                FULL=full_TD is not None,
                HALF=half_TD is not None,
                WANTED=wanted,
                MATRICES=matrices,
                **ctx.options,
            )
            if matrices:
                # As one matrix with long rows, so that the sums are a table without a copy.
                sums_MD = column_sums(parts_PMD.flatten(1)[:, None], torch.float32)[0].view(matrices, size)
                scale_grad, shift_grad = sums_MD[0].to(scale_D.dtype), sums_MD[1].to(shift_D.dtype)
                segments_grad = sums_MD[2:].to(segments_GD.dtype) if summed else None
            if positions_learn:
                positions_grad = _position_gradient(x_grad_TD, position_ids_T, cu_seqlens_S1, positions_PD)
        if words_learn:
            words_grad = x_grad_TD if ctx.row_per_token else _embedding_gradient(x_grad_TD, token_ids_T, words_VD)
        if segments_learn and not summed:
            segments_grad = _embedding_gradient(x_grad_TD, segment_ids_T, segments_GD)
        return words_grad, segments_grad, positions_grad, scale_grad, shift_grad, *(None,) * 8


def _position_gradient(
    x_grad_TD: Tensor, position_ids_T: Tensor, cu_seqlens_S1: Tensor, positions_PD: Tensor
) -> Tensor:
    grad_PD = torch.empty_like(positions_PD)
    (rows, size), sequences = x_grad_TD.shape, len(cu_seqlens_S1) - 1
    _embed_positions[(-(-size // COLUMNS), len(positions_PD))](
        *(x_grad_TD, position_ids_T, cu_seqlens_S1, grad_PD, rows, sequences),
        SIZE=size,
        SEQUENCES=SEQUENCES,
        COLUMNS=COLUMNS,
        num_warps=WARPS,
    )
    return grad_PD


def _embedding_gradient(x_grad_TD: Tensor, ids_T: Tensor, table: Tensor) -> Tensor:
    grad: Tensor = torch.ops.aten.embedding_dense_backward(x_grad_TD, ids_T, len(table), -1, False)
    return grad.to(table.dtype)


_jit = jit("rows", "sequences")


@_jit
def _sum(
    words,
    segments,
    positions,
    word,
    segment,
    position,
    SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
):
    # The order of transformers' BertModel, for the same rounding.
    x_D = read_row(words, word, SIZE, WIDTH) + read_row(segments, segment, SIZE, WIDTH)
    return x_D + read_row(positions, position, SIZE, WIDTH)


@_jit
def _embed_forward(
    words,
    segments,
    positions,
    token_ids,
    segment_ids,
    position_ids,
    scale,
    shift,
    seed,
    full,
    half,
    stats,
    eps,
    dropout,
    SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
    DROPS: tl.constexpr,
):
    row = tl.program_id(0)
    first = row * 0
    word, segment, position = tl.load(token_ids + row), tl.load(segment_ids + row), tl.load(position_ids + row)
    x_D = _sum(words, segments, positions, word, segment, position, SIZE, WIDTH)
    out_D = normalize(x_D, row, scale, shift, stats, eps, SIZE, WIDTH)
    if DROPS:
        out_D *= dropout_factors(seed, row, first, dropout, WIDTH)
    write_row(full, row, out_D, SIZE, WIDTH)
    write_row(half, row, out_D, SIZE, WIDTH)


@_jit
def _embed_backward(
    words,
    segments,
    positions,
    token_ids,
    segment_ids,
    position_ids,
    full_grad,
    half_grad,
    scale,
    seed,
    stats,
    x_grad,
    parts,
    rows,
    dropout,
    FULL: tl.constexpr,
    HALF: tl.constexpr,
    WANTED: tl.constexpr,
    MATRICES: tl.constexpr,
    SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
    DROPS: tl.constexpr,
):
    program = tl.program_id(0)
    row = program
    first = row * 0
    zero_D = tl.zeros([WIDTH], tl.float32)
    scale_sum_D, shift_sum_D, first_sum_D, second_sum_D = zero_D, zero_D, zero_D, zero_D
    scale_D = read_row(scale, first, SIZE, WIDTH)
    while row < rows:
        word, segment, position = tl.load(token_ids + row), tl.load(segment_ids + row), tl.load(position_ids + row)
        grad_D = output_gradient(full_grad, half_grad, row, FULL, HALF, SIZE, WIDTH)
        if DROPS:
            grad_D *= dropout_factors(seed, row, first, dropout, WIDTH)
        x_D = _sum(words, segments, positions, word, segment, position, SIZE, WIDTH)
        x_D, x_grad_D = normalize_backward(x_D, grad_D, scale_D, stats, row, SIZE, WIDTH)
        if WANTED:
            write_row(x_grad, row, x_grad_D, SIZE, WIDTH)
        if MATRICES > 0:
            scale_sum_D += grad_D * x_D
            shift_sum_D += grad_D
        if MATRICES > 2:
            first_sum_D += tl.where(segment == 0, x_grad_D, 0.0)
        if MATRICES > 3:
            second_sum_D += tl.where(segment == 1, x_grad_D, 0.0)
        row += tl.num_programs(0)
    if MATRICES > 0:
        write_row(parts, program * MATRICES, scale_sum_D, SIZE, WIDTH)
        write_row(parts, program * MATRICES + 1, shift_sum_D, SIZE, WIDTH)
    if MATRICES > 2:
        write_row(parts, program * MATRICES + 2, first_sum_D, SIZE, WIDTH)
    if MATRICES > 3:
        write_row(parts, program * MATRICES + 3, second_sum_D, SIZE, WIDTH)


@_jit
def _rows(matrix, row_N, columns, SIZE: tl.constexpr):
    """Rows of a matrix; zeros for row -1."""
    places = row_N.to(tl.int64)[:, None] * SIZE + columns[None, :]
    return tl.load(matrix + places, mask=(row_N >= 0)[:, None] & (columns < SIZE)[None, :], other=0.0)


@_jit
def _embed_positions(
    x_grad,
    position_ids,
    cu_seqlens,
    positions_grad,
    rows,
    sequences,
    SIZE: tl.constexpr,
    SEQUENCES: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    position = tl.program_id(1)
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    here_N = tl.arange(0, SEQUENCES)
    behind = tl.load(cu_seqlens + sequences)
    sums = tl.zeros([SEQUENCES, COLUMNS], tl.float32)
    start = position * 0
    while start < sequences:
        there_N = start + here_N < sequences
        row_N = tl.load(cu_seqlens + start + here_N, mask=there_N, other=0) + position
        end_N = tl.load(cu_seqlens + start + here_N + 1, mask=there_N, other=0)
        sums += _rows(x_grad, tl.where(row_N < end_N, row_N, -1), columns, SIZE)
        start += SEQUENCES
    while behind < rows:
        row_N = behind + here_N
        found_N = tl.load(position_ids + row_N, mask=row_N < rows, other=-1)
        sums += _rows(x_grad, tl.where(found_N == position, row_N, -1), columns, SIZE)
        behind += SEQUENCES
    sums_D = tl.sum(sums, 0).to(positions_grad.dtype.element_ty)
    tl.store(positions_grad + position.to(tl.int64) * SIZE + columns, sums_D, mask=columns < SIZE)
