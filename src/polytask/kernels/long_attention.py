"""Attention for packed streams with long sequences, as Triton kernels that take the keys block by block.

Sequences of up to 128 tokens are left to the kernels of short_attention.py. For longer ones, a program computes a block
of rows of one head, with a softmax whose sum and maximum are updated from block to block (FlashAttention, Dao et al.
2022), so memory grows with the number of tokens and not with its square. The backward pass computes the weights again.
It has a kernel for the queries and one for keys and values instead of sums across programs, so the same input gives
bit-identical gradients; torch's varlen kernel adds them in any order, and has no dropout.

Nothing depends on lengths that the host would have to know, so launches can be captured in a CUDA graph.

Without Triton this module can be imported, but its kernels cannot be called.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs
# (The values inside a kernel are Triton's own, which have no types in Python.)

from __future__ import annotations  # kernels name Triton's types, and Triton may be missing

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from polytask.kernels.short_attention import (
    MAX_LENGTH,
    attend_backward,
    attend_forward,
    contiguous_rows,
    draw_seed,
    in_product_type,
    load_tile,
    precision_of,
    short_fits,
    store_tile,
    width_of,
)
from polytask.kernels.triton_support import jit, tl


class Blocks(NamedTuple):
    """The size of a program."""

    rows: int
    """The tokens whose outputs or gradients a program computes."""
    columns: int
    """The tokens that it takes at a time."""
    warps: int
    stages: int
    """How many blocks are loaded or computed at the same time."""


# Module attributes, so that a benchmark can try other values.
FORWARD = Blocks(64, 64, 4, 3)
QUERIES = Blocks(64, 64, 4, 2)
KEYS = Blocks(64, 64, 4, 2)
WIDE = Blocks(32, 32, 4, 2)
"""For float32 and for heads of more than 64 dimensions, whose tiles need more registers and shared memory."""


def long_fits(q_THd: Tensor) -> bool:
    """Whether `attend_long` can run on this device and precision."""
    return short_fits(q_THd, MAX_LENGTH)


def attend_long(
    q_THd: Tensor, k_THd: Tensor, v_THd: Tensor, cu_seqlens_S1: Tensor, dropout: float, max_length: int
) -> Tensor:
    """softmax(q k' / sqrt(d)) v inside each sequence of at most `max_length` tokens.

    Strided views are not copied. Tokens behind the last sequence get zeros.
    """
    qkv = [in_product_type(t) for t in (q_THd, k_THd, v_THd)]
    seed_1 = draw_seed(q_THd, dropout)
    out_THd: Tensor = _LongAttention.apply(cu_seqlens_S1, seed_1, (dropout, max_length, None), *qkv)  # type: ignore[no-untyped-call]
    return out_THd


def attend_long_packed(
    qkv_T3Hd: Tensor, cu_seqlens_S1: Tensor, dropout: float, max_length: int, scale: float | None = None
) -> Tensor:
    """The same for queries, keys and values in one tensor, whose gradient is one tensor too.

    `scale` replaces 1 / sqrt(d).
    """
    qkv_T3Hd = in_product_type(qkv_T3Hd)
    seed_1 = draw_seed(qkv_T3Hd, dropout)
    out_THd: Tensor = _LongAttention.apply(cu_seqlens_S1, seed_1, (dropout, max_length, scale), qkv_T3Hd)  # type: ignore[no-untyped-call]
    return out_THd


class _LongAttention(torch.autograd.Function):
    """Of three tensors, or of one that has all three."""

    @staticmethod
    def forward(
        ctx: Any,
        cu_seqlens_S1: Tensor,
        seed_1: Tensor | None,
        numbers: tuple[float, int, float | None],
        *tensors: Tensor,
    ) -> Tensor:
        qkv = contiguous_rows(*_three(tensors))
        tokens, heads, _ = qkv[0].shape
        out_THd = qkv[0].new_empty(qkv[0].shape)
        sums_HT = qkv[0].new_empty(heads, tokens, dtype=torch.float32)
        dropout, _, scale = numbers
        attend_forward(qkv, out_THd, cu_seqlens_S1, seed_1, dropout, MAX_LENGTH, scale)
        _launch(_long_forward, FORWARD, [*qkv, out_THd, sums_HT], qkv, cu_seqlens_S1, seed_1, numbers)
        ctx.save_for_backward(cu_seqlens_S1, seed_1, out_THd, sums_HT, *tensors)
        ctx.numbers = numbers
        return out_THd

    @staticmethod
    def backward(ctx: Any, grad_THd: Tensor) -> tuple[Tensor | None, ...]:
        cu_seqlens_S1, seed_1, out_THd, sums_HT, *tensors = ctx.saved_tensors
        grads = [t.new_empty(t.shape) for t in tensors]
        inputs = contiguous_rows(*_three(tensors), grad_THd)
        outputs = _three(grads)
        dropout, _, scale = ctx.numbers
        attend_backward(inputs, outputs, cu_seqlens_S1, seed_1, dropout, MAX_LENGTH, scale)
        along_HT = torch.empty_like(sums_HT)
        passed = cu_seqlens_S1, seed_1, ctx.numbers
        q_grad, k_grad, v_grad = outputs
        strided = *inputs, q_grad
        _launch(_long_queries, QUERIES, [*inputs, out_THd, sums_HT, along_HT, q_grad], strided, *passed)
        _launch(_long_keys, KEYS, [*inputs, sums_HT, along_HT, k_grad, v_grad], strided, *passed)
        return None, None, None, *grads


def _three(tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    return tensors[0].unbind(1) if len(tensors) == 1 else tuple(tensors)


def _launch(
    kernel: Any,
    size_of_program: Blocks,
    tensors: Sequence[Tensor],
    strided: Sequence[Tensor],
    cu_seqlens_S1: Tensor,
    seed_1: Tensor | None,
    numbers: tuple[float, int, float | None],
) -> None:
    """Launch a program for each block of rows of each head. The kernel gets the strides of the tensors `strided`."""
    q_THd, (dropout, max_length, scale) = tensors[0], numbers
    tokens, heads, size = q_THd.shape
    width = width_of(size)
    if q_THd.dtype == torch.float32 or width > 64:
        size_of_program = WIDE
    blocks = -(-max_length // size_of_program.rows)
    programs = blocks * heads * (len(cu_seqlens_S1) - 1)
    strides = [stride for t in strided for stride in t.stride()[:2]]
    with torch.cuda.device_of(q_THd):
        kernel[(programs,)](
            *(*tensors, cu_seqlens_S1, cu_seqlens_S1 if seed_1 is None else seed_1, tokens, blocks),
            *(*strides, size**-0.5 if scale is None else scale, dropout),
            LOW=MAX_LENGTH,
            HEADS=heads,
            SIZE=size,
            WIDTH=width,
            ROWS=size_of_program.rows,
            COLUMNS=size_of_program.columns,
            DROPS=seed_1 is not None,
            PRECISION=precision_of(q_THd),
            num_warps=size_of_program.warps,
            num_stages=size_of_program.stages,
        )


_jit = jit("tokens", "blocks")


# The kernels. n is the length of a sequence, and first the first row of a program in it; q, k, v, out, ... are the
# addresses of a head of the sequence's first token; _step and _head are the strides of tokens and of heads. R is the
# number of a program's rows, and C that of the tokens that it takes at a time.


@_jit
def _block(cu, blocks, HEADS: tl.constexpr, ROWS: tl.constexpr):
    """The first token and the head of a program, its first row in the sequence, and the sequence's length."""
    program = tl.program_id(0)
    first = program % blocks * ROWS
    head = program // blocks % HEADS
    sequence = program // blocks // HEADS
    token = tl.load(cu + sequence).to(tl.int32)
    return token, head, first, tl.load(cu + sequence + 1).to(tl.int32) - token


@_jit
def _long_kept(seed, token, head, first, start, dropout, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """1 / (1 - dropout) for weights that are kept, else 0; depends on the seed, the token, the head and the column.

    The rate is rounded to a multiple of 2^-16: a draw of the generator is four numbers of 32 bits, here for eight
    consecutive columns. Drawing takes longer than the matmuls, so half as many draws matter.
    """
    zero = tl.zeros([ROWS, COLUMNS // 8], tl.int32)
    rows = zero + (token + first + tl.arange(0, ROWS))[:, None]
    eights = zero + (start // 8 + tl.arange(0, COLUMNS // 8))[None, :]
    a, b, c, d = tl.philox(tl.load(seed), rows, eights, zero + head, zero, 7)
    drawn = tl.join(tl.join(a, c), tl.join(b, d))
    least = tl.cast(dropout * 65536.0 + 0.5, tl.uint32)
    kept = tl.join(drawn & 65535, drawn >> 16) >= least
    # As 16 bits each, they need less shared memory on the way to the threads that hold their scores.
    kept = tl.reshape(kept.to(tl.float16), [ROWS, COLUMNS]).to(tl.float32)
    return kept * (1.0 / (1.0 - least.to(tl.float32) / 65536.0))


@_jit
def _long_forward(
    q,
    k,
    v,
    out,
    sums,
    cu,
    seed,
    tokens,
    blocks,
    q_step,
    q_head,
    k_step,
    k_head,
    v_step,
    v_head,
    scale,
    dropout,
    LOW: tl.constexpr,
    HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DROPS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """The outputs of a block of queries. Stores log2 of the sum of each row's weights for the backward pass."""
    token, head, first, n = _block(cu, blocks, HEADS, ROWS)
    if n <= LOW or first >= n:
        return
    place = token.to(tl.int64)
    k += place * k_step + head * k_head
    v += place * v_step + head * v_head
    q_Rd = load_tile(q + place * q_step + head * q_head + first * q_step, q_step, n - first, ROWS, SIZE, WIDTH)
    largest_R = tl.full([ROWS], float("-inf"), tl.float32)
    sums_R = tl.zeros([ROWS], tl.float32)
    out_Rd = tl.zeros([ROWS, WIDTH], tl.float32)
    for start in range(0, n, COLUMNS):
        k_Cd = load_tile(k + start * k_step, k_step, n - start, COLUMNS, SIZE, WIDTH)
        v_Cd = load_tile(v + start * v_step, v_step, n - start, COLUMNS, SIZE, WIDTH)
        scores_RC = tl.dot(q_Rd, tl.trans(k_Cd), input_precision=PRECISION) * (scale * 1.4426950408889634)  # log2(e)
        scores_RC = tl.where((start + tl.arange(0, COLUMNS) < n)[None, :], scores_RC, float("-inf"))
        larger_R = tl.maximum(largest_R, tl.max(scores_RC, 1))
        p_RC = tl.exp2(scores_RC - larger_R[:, None])
        shrink_R = tl.exp2(largest_R - larger_R)
        largest_R = larger_R
        sums_R = sums_R * shrink_R + tl.sum(p_RC, 1)
        if DROPS:
            p_RC *= _long_kept(seed, token, head, first, start, dropout, ROWS, COLUMNS)
        out_Rd = tl.dot(p_RC.to(v_Cd.dtype), v_Cd, out_Rd * shrink_R[:, None], input_precision=PRECISION)
    out_Rd *= (1.0 / sums_R)[:, None]
    rows = first + tl.arange(0, ROWS)
    store_tile(out + ((place + first) * HEADS + head) * SIZE, out_Rd, HEADS * SIZE, n - first, ROWS, SIZE, WIDTH)
    tl.store(sums + head.to(tl.int64) * tokens + place + rows, largest_R + tl.log2(sums_R), mask=rows < n)


@_jit
def _long_queries(
    q,
    k,
    v,
    grad,
    out,
    sums,
    along,
    q_grad,
    cu,
    seed,
    tokens,
    blocks,
    q_step,
    q_head,
    k_step,
    k_head,
    v_step,
    v_head,
    grad_step,
    grad_head,
    out_step,
    out_head,
    scale,
    dropout,
    LOW: tl.constexpr,
    HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DROPS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """The gradients of a block of queries. Stores the product of each row's output and gradient for the other kernel:
    it is the mean of the row's gradients of weights, which the softmax's gradient subtracts."""
    token, head, first, n = _block(cu, blocks, HEADS, ROWS)
    if n <= LOW or first >= n:
        return
    place = token.to(tl.int64)
    k += place * k_step + head * k_head
    v += place * v_step + head * v_head
    grad += (place + first) * grad_step + head * grad_head
    q_Rd = load_tile(q + place * q_step + head * q_head + first * q_step, q_step, n - first, ROWS, SIZE, WIDTH)
    grad_Rd = load_tile(grad, grad_step, n - first, ROWS, SIZE, WIDTH)
    out += ((place + first) * HEADS + head) * SIZE
    out_Rd = load_tile(out, HEADS * SIZE, n - first, ROWS, SIZE, WIDTH)
    along_R = tl.sum(out_Rd.to(tl.float32) * grad_Rd.to(tl.float32), 1)
    rows = first + tl.arange(0, ROWS)
    number = head.to(tl.int64) * tokens + place + rows
    tl.store(along + number, along_R, mask=rows < n)
    sums_R = tl.load(sums + number, mask=rows < n, other=0.0)
    q_grad_Rd = tl.zeros([ROWS, WIDTH], tl.float32)
    for start in range(0, n, COLUMNS):
        k_Cd = load_tile(k + start * k_step, k_step, n - start, COLUMNS, SIZE, WIDTH)
        v_Cd = load_tile(v + start * v_step, v_step, n - start, COLUMNS, SIZE, WIDTH)
        scores_RC = tl.dot(q_Rd, tl.trans(k_Cd), input_precision=PRECISION) * (scale * 1.4426950408889634)
        scores_RC = tl.where((start + tl.arange(0, COLUMNS) < n)[None, :], scores_RC, float("-inf"))
        p_RC = tl.exp2(scores_RC - sums_R[:, None])
        p_grad_RC = tl.dot(grad_Rd, tl.trans(v_Cd), input_precision=PRECISION)
        if DROPS:
            p_grad_RC *= _long_kept(seed, token, head, first, start, dropout, ROWS, COLUMNS)
        scores_grad_RC = (p_RC * (p_grad_RC - along_R[:, None]) * scale).to(k_Cd.dtype)
        q_grad_Rd = tl.dot(scores_grad_RC, k_Cd, q_grad_Rd, input_precision=PRECISION)
    q_grad += (place + first) * out_step + head * out_head
    store_tile(q_grad, q_grad_Rd, out_step, n - first, ROWS, SIZE, WIDTH)


@_jit
def _long_keys(
    q,
    k,
    v,
    grad,
    sums,
    along,
    k_grad,
    v_grad,
    cu,
    seed,
    tokens,
    blocks,
    q_step,
    q_head,
    k_step,
    k_head,
    v_step,
    v_head,
    grad_step,
    grad_head,
    out_step,
    out_head,
    scale,
    dropout,
    LOW: tl.constexpr,
    HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DROPS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """The gradients of a block of keys and values; the rows of scores are keys here, the columns queries."""
    token, head, first, n = _block(cu, blocks, HEADS, ROWS)
    if n <= LOW or first >= n:
        return
    place = token.to(tl.int64)
    q += place * q_step + head * q_head
    grad += place * grad_step + head * grad_head
    sums += head.to(tl.int64) * tokens + place
    along += head.to(tl.int64) * tokens + place
    k_Rd = load_tile(k + place * k_step + head * k_head + first * k_step, k_step, n - first, ROWS, SIZE, WIDTH)
    v_Rd = load_tile(v + place * v_step + head * v_head + first * v_step, v_step, n - first, ROWS, SIZE, WIDTH)
    is_key_R = first + tl.arange(0, ROWS) < n
    k_grad_Rd = tl.zeros([ROWS, WIDTH], tl.float32)
    v_grad_Rd = tl.zeros([ROWS, WIDTH], tl.float32)
    for start in range(0, n, COLUMNS):
        q_Cd = load_tile(q + start * q_step, q_step, n - start, COLUMNS, SIZE, WIDTH)
        grad_Cd = load_tile(grad + start * grad_step, grad_step, n - start, COLUMNS, SIZE, WIDTH)
        columns = start + tl.arange(0, COLUMNS)
        # Columns behind the last query have finite weights, which are multiplied with gradients of zero.
        sums_C = tl.load(sums + columns, mask=columns < n, other=0.0)
        along_C = tl.load(along + columns, mask=columns < n, other=0.0)
        scores_RC = tl.dot(k_Rd, tl.trans(q_Cd), input_precision=PRECISION) * (scale * 1.4426950408889634)
        p_RC = tl.exp2(tl.where(is_key_R[:, None], scores_RC, float("-inf")) - sums_C[None, :])
        p_grad_RC = tl.dot(v_Rd, tl.trans(grad_Cd), input_precision=PRECISION)
        used_RC = p_RC
        if DROPS:
            kept_RC = tl.trans(_long_kept(seed, token, head, start, first, dropout, COLUMNS, ROWS))
            used_RC = p_RC * kept_RC
            p_grad_RC *= kept_RC
        v_grad_Rd = tl.dot(used_RC.to(grad_Cd.dtype), grad_Cd, v_grad_Rd, input_precision=PRECISION)
        scores_grad_RC = (p_RC * (p_grad_RC - along_C[None, :]) * scale).to(q_Cd.dtype)
        k_grad_Rd = tl.dot(scores_grad_RC, q_Cd, k_grad_Rd, input_precision=PRECISION)
    there = (place + first) * out_step + head * out_head
    store_tile(k_grad + there, k_grad_Rd, out_step, n - first, ROWS, SIZE, WIDTH)
    store_tile(v_grad + there, v_grad_Rd, out_step, n - first, ROWS, SIZE, WIDTH)
