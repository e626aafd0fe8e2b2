"""Attention for packed streams of short sequences, as Triton kernels: the scores of a sequence are one tile.

A varlen kernel is designed for long sequences: it works in blocks of 64 or 128 tokens, of which a sequence of 29 tokens
fills a small part. Here a program computes one head of one sequence, in the smallest sufficient tile of 16, 32, 64 or
128 tokens. The softmax sees whole rows, the backward pass computes it again, and nothing is summed across programs, so
the same input gives bit-identical outputs and gradients.

The resources that a kernel needs are those of its largest tile. So lengths are divided into classes, each with a launch
of its own over all sequences; programs whose sequence is in another class end at once. Nothing depends on lengths that
the host would have to know, so launches can be captured in a CUDA graph, also with empty sequences.

Without Triton this module can be imported, but its kernels cannot be called.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs
# (The values inside a kernel are Triton's own, which have no types in Python.)

from __future__ import annotations  # kernels name Triton's types, and Triton may be missing

from typing import Any

import torch
from torch import Tensor

from polytask.kernels.triton_support import TRITON, jit, kernels_run, shared_memory, tl

MAX_LENGTH = 128
MAX_WIDTH = 128  # of a head
DTYPES = (torch.bfloat16, torch.float16, torch.float32)

Launches = tuple[tuple[int, int], ...]
# Each launch: its maximum length and its warps. A launch starts where the one before it ends, and has a branch for each
# tile in its range. Module attributes, so that a benchmark can try other values.
FORWARD: Launches = ((32, 1), (64, 4), (128, 8))
BACKWARD: Launches = ((32, 2), (64, 4), (128, 8))
FEW = 1024
"""Up to this many programs run on a GPU at once, so the last launch alone computes all classes."""


def attend_short(
    q_THd: Tensor,
    k_THd: Tensor,
    v_THd: Tensor,
    cu_seqlens_S1: Tensor,
    dropout: float = 0.0,
    max_length: int = MAX_LENGTH,
) -> Tensor:
    """softmax(q k' / sqrt(d)) v inside each sequence of at most `max_length` tokens.

    Strided views are not copied. Tokens behind the last sequence get zeros; the output for a sequence longer than
    `max_length` is undefined.
    """
    q_THd, k_THd, v_THd = (in_product_type(t) for t in (q_THd, k_THd, v_THd))
    seed_1 = draw_seed(q_THd, dropout)
    out_THd: Tensor = _Attention.apply(q_THd, k_THd, v_THd, cu_seqlens_S1, seed_1, dropout, max_length)  # type: ignore[no-untyped-call]
    return out_THd


def attend_short_packed(
    qkv_T3Hd: Tensor,
    cu_seqlens_S1: Tensor,
    dropout: float = 0.0,
    max_length: int = MAX_LENGTH,
    scale: float | None = None,
) -> Tensor:
    """The same for queries, keys and values in one tensor, whose gradient is one tensor too.

    `scale` replaces 1 / sqrt(d).
    """
    qkv_T3Hd = in_product_type(qkv_T3Hd)
    seed_1 = draw_seed(qkv_T3Hd, dropout)
    out_THd: Tensor = _PackedAttention.apply(qkv_T3Hd, cu_seqlens_S1, seed_1, dropout, max_length, scale)  # type: ignore[no-untyped-call]
    return out_THd


def in_product_type(t: Tensor) -> Tensor:
    assert TRITON, "attention for short sequences needs Triton"
    assert t.shape[-1] <= MAX_WIDTH, "the heads are too wide"
    device = t.device.type
    # As scaled_dot_product_attention does.
    return t.to(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else t


def draw_seed(t: Tensor, dropout: float) -> Tensor | None:
    """The seed of the dropout masks, which the backward pass draws again."""
    assert 0 <= dropout < 1
    return torch.randint(2**62, (1,), device=t.device) if dropout else None


def short_fits(q_THd: Tensor, max_length: int) -> bool:
    """Whether `attend_short` can run on this device and precision, and pays off there."""
    size = q_THd.shape[-1]
    if not (kernels_run(q_THd.device) and q_THd.dtype in DTYPES and size <= MAX_WIDTH and max_length <= MAX_LENGTH):
        return False
    tile = next(high for high, _ in BACKWARD if max_length <= high)
    width = width_of(size)
    # Bytes of shared memory. The compiler needed less than this for compute capabilities 8.0 to 12.0. Float32 fits only
    # on newer GPUs; before Hopper the kernel would spill to slow memory.
    need = tile * (2 * tile + 8 * width)
    if q_THd.dtype == torch.float32:
        need = 200_000 if tile * width <= MAX_LENGTH * 64 else 400_000
    return need <= shared_memory(q_THd.device)


def width_of(size: int) -> int:
    """The width of a tile: a power of two, at least the smallest that tensor cores support."""
    return max(16, 1 << (size - 1).bit_length())


def precision_of(t: Tensor) -> str:
    """The precision of products, in Triton's words."""
    # Three products of 11 bits each replace one of float32's 24 bits. Without tensor cores a kernel needs so many
    # registers that it spills to memory, and takes a minute to compile.
    return "tf32x3" if t.dtype == torch.float32 else "tf32"


def _launches(plan: Launches, max_length: int, programs: int) -> list[tuple[int, int, int]]:
    """For each launch, the lengths above which and up to which it computes, and its warps."""
    lows = [0, *(high for high, _ in plan)]
    needed = [(low, high, warps) for low, (high, warps) in zip(lows, plan, strict=False) if low < max_length]
    return needed if programs > FEW else [(0, *needed[-1][1:])]


_jit = jit("sequences", "tokens")


# The kernels. n is the length of a sequence; q, k, v, out, ... are the addresses of a head of its first token, and with
# _Ld the tiles loaded from there; _step and _head are the strides of tokens and of heads.


@_jit
def _sequence(cu, sequences, tokens, HEADS: tl.constexpr):
    """The sequence and the head of a program, the sequence's first token, and its length."""
    # Adjacent programs compute adjacent heads, which share cache lines.
    sequence = tl.program_id(0) // HEADS
    head = tl.program_id(0) % HEADS
    token = tl.load(cu + sequence).to(tl.int32)
    end = tl.load(cu + sequence + 1, mask=sequence < sequences, other=tokens).to(tl.int32)
    return sequence, head, token, end - token


@_jit
def load_tile(start, step, n, TILE: tl.constexpr, SIZE: tl.constexpr, WIDTH: tl.constexpr):
    rows = tl.arange(0, TILE)[:, None]
    columns = tl.arange(0, WIDTH)[None, :]
    inside = rows < n
    if SIZE < WIDTH:  # otherwise the mask is constant along a row, and loads are wide
        inside = inside & (columns < SIZE)
    return tl.load(start + rows * step + columns, mask=inside, other=0.0)


@_jit
def store_tile(start, x_Ld, step, n, TILE: tl.constexpr, SIZE: tl.constexpr, WIDTH: tl.constexpr):
    rows = tl.arange(0, TILE)[:, None]
    columns = tl.arange(0, WIDTH)[None, :]
    inside = rows < n
    if SIZE < WIDTH:
        inside = inside & (columns < SIZE)
    tl.store(start + rows * step + columns, x_Ld.to(start.dtype.element_ty), mask=inside)


@_jit
def _clear(start, step, n, SIZE: tl.constexpr, WIDTH: tl.constexpr):
    zeros_Ld = tl.zeros([16, WIDTH], tl.float32)
    while n > 0:
        store_tile(start, zeros_Ld, step, n, 16, SIZE, WIDTH)
        start += 16 * step
        n -= 16


@_jit
def _weights(q_Ld, k_Ld, n, scale, TILE: tl.constexpr, PRECISION: tl.constexpr):
    """softmax(scale q k'). Rows without a token have weights too, which are only multiplied with zeros."""
    scores_LL = tl.dot(q_Ld, tl.trans(k_Ld), input_precision=PRECISION) * (scale * 1.4426950408889634)  # log2(e)
    scores_LL = tl.where(tl.arange(0, TILE)[None, :] < n, scores_LL, float("-inf"))
    p_LL = tl.exp2(scores_LL - tl.max(scores_LL, 1)[:, None])
    return p_LL * (1.0 / tl.sum(p_LL, 1))[:, None]


@_jit
def _kept(seed, token, head, dropout, TILE: tl.constexpr):
    """1 / (1 - dropout) for weights that are kept, else 0; depends on the seed, the token, the head and the column."""
    # The generator draws four numbers at a time, here for four consecutive columns. Seven rounds are the fewest
    # known to pass all tests of randomness (Salmon et al. 2011); ten would take longer than everything else here.
    zero = tl.zeros([TILE, TILE // 4], tl.int32)
    rows = zero + (token + tl.arange(0, TILE))[:, None]
    fours = zero + (head * 32 + tl.arange(0, TILE // 4))[None, :]
    a, b, c, d = tl.philox(tl.load(seed), rows, fours, zero, zero, 7)
    kept = tl.join(tl.join(a, c), tl.join(b, d)) >= tl.cast(dropout * 4294967296.0, tl.uint32)
    # As 16 bits each, they need less shared memory on the way to the threads that hold their scores.
    return tl.reshape(kept.to(tl.float16), [TILE, TILE]).to(tl.float32) * (1.0 / (1.0 - dropout))


@_jit
def _attend_forward(
    q,
    k,
    v,
    out,
    cu,
    seed,
    sequences,
    tokens,
    q_step,
    q_head,
    k_step,
    k_head,
    v_step,
    v_head,
    scale,
    dropout,
    LOW: tl.constexpr,
    HIGH: tl.constexpr,
    HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
    DROPS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    sequence, head, token, n = _sequence(cu, sequences, tokens, HEADS)
    place = token.to(tl.int64)
    out += (place * HEADS + head) * SIZE
    if sequence == sequences:  # the tokens behind the last sequence
        _clear(out, HEADS * SIZE, n, SIZE, WIDTH)
    else:
        for TILE in tl.static_range(16, HIGH + 1, 16):
            if TILE > LOW and TILE & (TILE - 1) == 0 and n <= TILE and n > (TILE // 2 if TILE > 16 else 0):
                q_Ld = load_tile(q + place * q_step + head * q_head, q_step, n, TILE, SIZE, WIDTH)
                k_Ld = load_tile(k + place * k_step + head * k_head, k_step, n, TILE, SIZE, WIDTH)
                v_Ld = load_tile(v + place * v_step + head * v_head, v_step, n, TILE, SIZE, WIDTH)
                p_LL = _weights(q_Ld, k_Ld, n, scale, TILE, PRECISION)
                if DROPS:
                    p_LL *= _kept(seed, token, head, dropout, TILE)
                out_Ld = tl.dot(p_LL.to(v_Ld.dtype), v_Ld, input_precision=PRECISION)
                store_tile(out, out_Ld, HEADS * SIZE, n, TILE, SIZE, WIDTH)


@_jit
def _attend_backward(
    q,
    k,
    v,
    grad,
    q_grad,
    k_grad,
    v_grad,
    cu,
    seed,
    sequences,
    tokens,
    q_step,
    q_head,
    k_step,
    k_head,
    v_step,
    v_head,
    grad_step,
    grad_head,
    out_step,
    scale,
    dropout,
    LOW: tl.constexpr,
    HIGH: tl.constexpr,
    HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
    DROPS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    sequence, head, token, n = _sequence(cu, sequences, tokens, HEADS)
    place = token.to(tl.int64)
    q_grad += place * out_step + head * SIZE
    k_grad += place * out_step + head * SIZE
    v_grad += place * out_step + head * SIZE
    if sequence == sequences:
        _clear(q_grad, out_step, n, SIZE, WIDTH)
        _clear(k_grad, out_step, n, SIZE, WIDTH)
        _clear(v_grad, out_step, n, SIZE, WIDTH)
    else:
        for TILE in tl.static_range(16, HIGH + 1, 16):
            if TILE > LOW and TILE & (TILE - 1) == 0 and n <= TILE and n > (TILE // 2 if TILE > 16 else 0):
                q_Ld = load_tile(q + place * q_step + head * q_head, q_step, n, TILE, SIZE, WIDTH)
                k_Ld = load_tile(k + place * k_step + head * k_head, k_step, n, TILE, SIZE, WIDTH)
                v_Ld = load_tile(v + place * v_step + head * v_head, v_step, n, TILE, SIZE, WIDTH)
                grad_Ld = load_tile(grad + place * grad_step + head * grad_head, grad_step, n, TILE, SIZE, WIDTH)
                p_LL = _weights(q_Ld, k_Ld, n, scale, TILE, PRECISION)
                p_grad_LL = tl.dot(grad_Ld, tl.trans(v_Ld), input_precision=PRECISION)
                used_LL = p_LL
                if DROPS:
                    kept_LL = _kept(seed, token, head, dropout, TILE)
                    used_LL = p_LL * kept_LL
                    p_grad_LL *= kept_LL
                v_grad_Ld = tl.dot(tl.trans(used_LL.to(grad_Ld.dtype)), grad_Ld, input_precision=PRECISION)
                store_tile(v_grad, v_grad_Ld, out_step, n, TILE, SIZE, WIDTH)
                scores_grad_LL = p_LL * (p_grad_LL - tl.sum(p_LL * p_grad_LL, 1)[:, None])
                scores_grad_LL = (scores_grad_LL * scale).to(q_Ld.dtype)
                q_grad_Ld = tl.dot(scores_grad_LL, k_Ld, input_precision=PRECISION)
                store_tile(q_grad, q_grad_Ld, out_step, n, TILE, SIZE, WIDTH)
                k_grad_Ld = tl.dot(tl.trans(scores_grad_LL), q_Ld, input_precision=PRECISION)
                store_tile(k_grad, k_grad_Ld, out_step, n, TILE, SIZE, WIDTH)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q_THd: Tensor,
        k_THd: Tensor,
        v_THd: Tensor,
        cu_seqlens_S1: Tensor,
        seed_1: Tensor | None,
        dropout: float,
        max_length: int,
    ) -> Tensor:
        ctx.save_for_backward(q_THd, k_THd, v_THd, cu_seqlens_S1, seed_1)
        ctx.numbers = dropout, max_length
        out_THd = q_THd.new_empty(q_THd.shape)
        return attend_forward((q_THd, k_THd, v_THd), out_THd, cu_seqlens_S1, seed_1, *ctx.numbers)

    @staticmethod
    def backward(ctx: Any, grad_THd: Tensor) -> tuple[Tensor | None, ...]:
        *qkv, cu_seqlens_S1, seed_1 = ctx.saved_tensors
        grads = tuple(t.new_empty(t.shape) for t in qkv)
        inputs = *qkv, grad_THd
        attend_backward(inputs, grads, cu_seqlens_S1, seed_1, *ctx.numbers)
        return *grads, None, None, None, None


class _PackedAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        qkv_T3Hd: Tensor,
        cu_seqlens_S1: Tensor,
        seed_1: Tensor | None,
        dropout: float,
        max_length: int,
        scale: float | None,
    ) -> Tensor:
        ctx.save_for_backward(qkv_T3Hd, cu_seqlens_S1, seed_1)
        ctx.numbers = dropout, max_length, scale
        out_THd = qkv_T3Hd.new_empty(qkv_T3Hd[:, 0].shape)
        return attend_forward(qkv_T3Hd.unbind(1), out_THd, cu_seqlens_S1, seed_1, *ctx.numbers)

    @staticmethod
    def backward(ctx: Any, grad_THd: Tensor) -> tuple[Tensor | None, ...]:
        qkv_T3Hd, cu_seqlens_S1, seed_1 = ctx.saved_tensors
        grad_T3Hd = qkv_T3Hd.new_empty(qkv_T3Hd.shape)
        inputs = *qkv_T3Hd.unbind(1), grad_THd
        attend_backward(inputs, grad_T3Hd.unbind(1), cu_seqlens_S1, seed_1, *ctx.numbers)
        return grad_T3Hd, None, None, None, None, None


def attend_forward(qkv: tuple[Tensor, ...], out_THd: Tensor, *options: Any) -> Tensor:
    """Write the outputs of sequences of up to `max_length` tokens. `options`: see `_launch`."""
    _launch(_attend_forward, FORWARD, contiguous_rows(*qkv), (out_THd,), *options)
    return out_THd


def attend_backward(inputs: tuple[Tensor, ...], grads: tuple[Tensor, ...], *options: Any) -> None:
    """Write the gradients of queries, keys and values; `inputs` are these and the gradient of the output."""
    _launch(_attend_backward, BACKWARD, contiguous_rows(*inputs), grads, *options)


def contiguous_rows(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors, copied where the elements of a head are not adjacent in memory."""
    return tuple(t if t.stride(-1) == 1 else t.contiguous() for t in tensors)


def _launch(
    kernel: Any,
    plan: Launches,
    inputs: tuple[Tensor, ...],
    outputs: tuple[Tensor, ...],
    cu_seqlens_S1: Tensor,
    seed_1: Tensor | None,
    dropout: float,
    max_length: int,
    scale: float | None = None,
) -> None:
    q_THd = inputs[0]
    assert all(t.shape == q_THd.shape and t.dtype == q_THd.dtype for t in inputs), "queries, keys and values differ"
    tokens, heads, size = q_THd.shape
    sequences = len(cu_seqlens_S1) - 1
    strides = [stride for t in inputs for stride in t.stride()[:2]]
    if len(outputs) > 1:  # gradients, which may be parts of one tensor
        strides.append(outputs[0].stride(0))
    with torch.cuda.device_of(q_THd):
        for low, high, warps in _launches(plan, max_length, sequences * heads):
            # The first launch has one more program per head, for the tokens behind the last sequence.
            kernel[((sequences + (low == 0)) * heads,)](
                *(*inputs, *outputs, cu_seqlens_S1, cu_seqlens_S1 if seed_1 is None else seed_1, sequences, tokens),
                *(*strides, size**-0.5 if scale is None else scale, dropout),
                LOW=low,
                HIGH=high,
                HEADS=heads,
                SIZE=size,
                WIDTH=width_of(size),
                DROPS=seed_1 is not None,
                PRECISION=precision_of(q_THd),
                num_warps=warps,
            )
