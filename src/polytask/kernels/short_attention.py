"""Attention for packed streams of short sequences, as Triton kernels: a sequence's scores are one tile.

A varlen kernel is made for long sequences: it works in blocks of 64 or 128, of which one of 29 tokens fills a corner.
Here a program is one head of one sequence, in a tile of 16, 32, 64 or 128 tokens, whichever is enough. A softmax sees
its whole row at once, the backward pass computes it again, and nothing is added up across programs: the same input
gives the same bits, gradients included.

What a kernel takes of a multiprocessor is what its largest tile takes. So the lengths are cut into classes, each with a
launch of its own over all sequences; programs whose sequence is of another class end at once. Nothing depends on
lengths the host would have to know: launches can be captured in a CUDA graph, with sequences of no tokens in it.

Knows tensors only; without Triton it can be imported, not called.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs
# (What a kernel takes and makes are Triton's own values, which have no types in Python.)

from __future__ import annotations  # kernels name Triton's types, which may not be there

from typing import Any

import torch
from torch import Tensor

from polytask.kernels.triton_support import TRITON, jit, kernels_run, shared_memory, tl

LONGEST = 128
WIDEST = 128  # of a head
DTYPES = (torch.bfloat16, torch.float16, torch.float32)

Launches = tuple[tuple[int, int], ...]
# The launches: up to which length, and with how many warps. A launch begins where the one before it ends, and has a
# branch for every tile in its range. Attributes of the module, so that a benchmark can try others.
FORWARD: Launches = ((32, 1), (64, 4), (128, 8))
BACKWARD: Launches = ((32, 2), (64, 4), (128, 8))
FEW = 1024
"""Up to so many programs, a GPU has room for all at once, and the last launch does the work of all."""


def attend_short(
    q_THd: Tensor,
    k_THd: Tensor,
    v_THd: Tensor,
    cu_seqlens_S1: Tensor,
    dropout: float = 0.0,
    max_length: int = LONGEST,
) -> Tensor:
    """softmax(q k' / sqrt(d)) v inside each sequence of at most `max_length` tokens.

    Views with strides of their own are taken as they are. Tokens behind the last sequence get zeros; those of a longer
    sequence than promised get nothing, and are whatever was in memory.
    """
    q_THd, k_THd, v_THd = (_ready(t) for t in (q_THd, k_THd, v_THd))
    seed_1 = _draw(q_THd, dropout)
    out_THd: Tensor = _Attention.apply(q_THd, k_THd, v_THd, cu_seqlens_S1, seed_1, dropout, max_length)  # type: ignore[no-untyped-call]
    return out_THd


def attend_short_packed(
    qkv_T3Hd: Tensor,
    cu_seqlens_S1: Tensor,
    dropout: float = 0.0,
    max_length: int = LONGEST,
    scale: float | None = None,
) -> Tensor:
    """The same of one product's queries, keys and values, whose gradient is then one tensor too; `scale` in place of
    1 / sqrt(d)."""
    qkv_T3Hd = _ready(qkv_T3Hd)
    seed_1 = _draw(qkv_T3Hd, dropout)
    out_THd: Tensor = _PackedAttention.apply(qkv_T3Hd, cu_seqlens_S1, seed_1, dropout, max_length, scale)  # type: ignore[no-untyped-call]
    return out_THd


def _ready(t: Tensor) -> Tensor:
    assert TRITON, "the attention for short sequences needs Triton"
    assert t.shape[-1] <= WIDEST, "the heads are too wide"
    device = t.device.type
    # As scaled_dot_product_attention does.
    return t.to(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else t


def _draw(t: Tensor, dropout: float) -> Tensor | None:
    """What the masks are made of, in the backward pass once more."""
    assert 0 <= dropout < 1
    return torch.randint(2**62, (1,), device=t.device) if dropout else None


def short_fits(q_THd: Tensor, max_length: int) -> bool:
    """Whether `attend_short` can run where these are, and is worth it there."""
    size = q_THd.shape[-1]
    if not (kernels_run(q_THd.device) and q_THd.dtype in DTYPES and size <= WIDEST and max_length <= LONGEST):
        return False
    tile = next(high for high, _ in BACKWARD if max_length <= high)
    width = _width(size)
    # Bytes of shared memory. The compiler took less than this for compute capabilities 8.0 to 12.0. Float32 fits on
    # newer ones only; on those before Hopper it would become a kernel that works in slow memory.
    need = tile * (2 * tile + 8 * width)
    if q_THd.dtype == torch.float32:
        need = 200_000 if tile * width <= LONGEST * 64 else 400_000
    return need <= shared_memory(q_THd.device)


def _width(size: int) -> int:
    """A tile's width: a power of two from the smallest that the tensor cores take."""
    return max(16, 1 << (size - 1).bit_length())


def _launches(plan: Launches, max_length: int, programs: int) -> list[tuple[int, int, int]]:
    """The lengths above which and up to which each launch works, and its warps."""
    lows = [0, *(high for high, _ in plan)]
    needed = [(low, high, warps) for low, (high, warps) in zip(lows, plan, strict=False) if low < max_length]
    return needed if programs > FEW else [(0, *needed[-1][1:])]


_jit = jit("sequences", "tokens")


# The kernels. n is a sequence's length; q, k, v, out, ... are the addresses of its first token's head, and with _Ld the
# tiles loaded from there; _step is how far two tokens lie apart in memory, _head how far two heads do.


@_jit
def _sequence(cu, sequences, tokens, HEADS: tl.constexpr):
    """Which sequence and head a program works on, its first token, and how many it has."""
    # Programs side by side work on heads side by side, which share lines of memory.
    sequence = tl.program_id(0) // HEADS
    head = tl.program_id(0) % HEADS
    token = tl.load(cu + sequence).to(tl.int32)
    end = tl.load(cu + sequence + 1, mask=sequence < sequences, other=tokens).to(tl.int32)
    return sequence, head, token, end - token


@_jit
def _load(start, step, n, TILE: tl.constexpr, SIZE: tl.constexpr, WIDTH: tl.constexpr):
    rows = tl.arange(0, TILE)[:, None]
    columns = tl.arange(0, WIDTH)[None, :]
    inside = rows < n
    if SIZE < WIDTH:  # else the mask is the same all along a row, and rows are loaded in wide pieces
        inside = inside & (columns < SIZE)
    return tl.load(start + rows * step + columns, mask=inside, other=0.0)


@_jit
def _store(start, x_Ld, step, n, TILE: tl.constexpr, SIZE: tl.constexpr, WIDTH: tl.constexpr):
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
        _store(start, zeros_Ld, step, n, 16, SIZE, WIDTH)
        start += 16 * step
        n -= 16


@_jit
def _weights(q_Ld, k_Ld, n, scale, TILE: tl.constexpr, PRECISION: tl.constexpr):
    """softmax(scale q k'). A row without a token has some weights too; they meet zeros wherever they go."""
    scores_LL = tl.dot(q_Ld, tl.trans(k_Ld), input_precision=PRECISION) * (scale * 1.4426950408889634)  # log2(e)
    scores_LL = tl.where(tl.arange(0, TILE)[None, :] < n, scores_LL, float("-inf"))
    p_LL = tl.exp2(scores_LL - tl.max(scores_LL, 1)[:, None])
    return p_LL * (1.0 / tl.sum(p_LL, 1))[:, None]


@_jit
def _kept(seed, token, head, dropout, TILE: tl.constexpr):
    """1 / (1 - dropout) where a weight is kept, else 0. A draw is named by its token, head and column."""
    # The generator makes four numbers at a time: here for four columns in a row. Seven of its rounds are the fewest
    # known to pass all tests of randomness (Salmon et al. 2011); its ten would take longer than all the rest.
    zero = tl.zeros([TILE, TILE // 4], tl.int32)
    rows = zero + (token + tl.arange(0, TILE))[:, None]
    fours = zero + (head * 32 + tl.arange(0, TILE // 4))[None, :]
    a, b, c, d = tl.philox(tl.load(seed), rows, fours, zero, zero, 7)
    kept = tl.join(tl.join(a, c), tl.join(b, d)) >= tl.cast(dropout * 4294967296.0, tl.uint32)
    # They move to the threads that hold their scores as 16 bits each, because that takes less shared memory.
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
    if sequence == sequences:  # the tokens behind the last one
        _clear(out, HEADS * SIZE, n, SIZE, WIDTH)
    else:
        for TILE in tl.static_range(16, HIGH + 1, 16):
            if TILE > LOW and TILE & (TILE - 1) == 0 and n <= TILE and n > (TILE // 2 if TILE > 16 else 0):
                q_Ld = _load(q + place * q_step + head * q_head, q_step, n, TILE, SIZE, WIDTH)
                k_Ld = _load(k + place * k_step + head * k_head, k_step, n, TILE, SIZE, WIDTH)
                v_Ld = _load(v + place * v_step + head * v_head, v_step, n, TILE, SIZE, WIDTH)
                p_LL = _weights(q_Ld, k_Ld, n, scale, TILE, PRECISION)
                if DROPS:
                    p_LL *= _kept(seed, token, head, dropout, TILE)
                out_Ld = tl.dot(p_LL.to(v_Ld.dtype), v_Ld, input_precision=PRECISION)
                _store(out, out_Ld, HEADS * SIZE, n, TILE, SIZE, WIDTH)


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
                q_Ld = _load(q + place * q_step + head * q_head, q_step, n, TILE, SIZE, WIDTH)
                k_Ld = _load(k + place * k_step + head * k_head, k_step, n, TILE, SIZE, WIDTH)
                v_Ld = _load(v + place * v_step + head * v_head, v_step, n, TILE, SIZE, WIDTH)
                grad_Ld = _load(grad + place * grad_step + head * grad_head, grad_step, n, TILE, SIZE, WIDTH)
                p_LL = _weights(q_Ld, k_Ld, n, scale, TILE, PRECISION)
                p_grad_LL = tl.dot(grad_Ld, tl.trans(v_Ld), input_precision=PRECISION)
                used_LL = p_LL
                if DROPS:
                    kept_LL = _kept(seed, token, head, dropout, TILE)
                    used_LL = p_LL * kept_LL
                    p_grad_LL *= kept_LL
                v_grad_Ld = tl.dot(tl.trans(used_LL.to(grad_Ld.dtype)), grad_Ld, input_precision=PRECISION)
                _store(v_grad, v_grad_Ld, out_step, n, TILE, SIZE, WIDTH)
                scores_grad_LL = p_LL * (p_grad_LL - tl.sum(p_LL * p_grad_LL, 1)[:, None])
                scores_grad_LL = (scores_grad_LL * scale).to(q_Ld.dtype)
                q_grad_Ld = tl.dot(scores_grad_LL, k_Ld, input_precision=PRECISION)
                _store(q_grad, q_grad_Ld, out_step, n, TILE, SIZE, WIDTH)
                k_grad_Ld = tl.dot(tl.trans(scores_grad_LL), q_Ld, input_precision=PRECISION)
                _store(k_grad, k_grad_Ld, out_step, n, TILE, SIZE, WIDTH)


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
        return _attend((q_THd, k_THd, v_THd), cu_seqlens_S1, seed_1, *ctx.numbers)

    @staticmethod
    def backward(ctx: Any, grad_THd: Tensor) -> tuple[Tensor | None, ...]:
        *qkv, cu_seqlens_S1, seed_1 = ctx.saved_tensors
        grads = tuple(t.new_empty(t.shape) for t in qkv)
        inputs = _rows_in_one_piece(*qkv, grad_THd)
        _launch(_attend_backward, BACKWARD, inputs, grads, cu_seqlens_S1, seed_1, *ctx.numbers)
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
        return _attend(qkv_T3Hd.unbind(1), cu_seqlens_S1, seed_1, *ctx.numbers)

    @staticmethod
    def backward(ctx: Any, grad_THd: Tensor) -> tuple[Tensor | None, ...]:
        qkv_T3Hd, cu_seqlens_S1, seed_1 = ctx.saved_tensors
        grad_T3Hd = qkv_T3Hd.new_empty(qkv_T3Hd.shape)
        inputs = _rows_in_one_piece(*qkv_T3Hd.unbind(1), grad_THd)
        _launch(_attend_backward, BACKWARD, inputs, grad_T3Hd.unbind(1), cu_seqlens_S1, seed_1, *ctx.numbers)
        return grad_T3Hd, None, None, None, None, None


def _attend(qkv: tuple[Tensor, ...], cu_seqlens_S1: Tensor, seed_1: Tensor | None, *numbers: Any) -> Tensor:
    out_THd = qkv[0].new_empty(qkv[0].shape)
    _launch(_attend_forward, FORWARD, _rows_in_one_piece(*qkv), (out_THd,), cu_seqlens_S1, seed_1, *numbers)
    return out_THd


def _rows_in_one_piece(*tensors: Tensor) -> tuple[Tensor, ...]:
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
    # Three products of 11 bits each make up for the 24 of float32. Real ones, without tensor cores, need so many
    # registers that a kernel of them works in memory for the most part, and takes a minute to compile.
    precision = "tf32x3" if q_THd.dtype == torch.float32 else "tf32"
    with torch.cuda.device_of(q_THd):
        for low, high, warps in _launches(plan, max_length, sequences * heads):
            # The first launch has a program more for each head: that of the tokens behind the last sequence.
            kernel[((sequences + (low == 0)) * heads,)](
                *(*inputs, *outputs, cu_seqlens_S1, cu_seqlens_S1 if seed_1 is None else seed_1, sequences, tokens),
                *(*strides, size**-0.5 if scale is None else scale, dropout),
                LOW=low,
                HIGH=high,
                HEADS=heads,
                SIZE=size,
                WIDTH=_width(size),
                DROPS=seed_1 is not None,
                PRECISION=precision,
                num_warps=warps,
            )
