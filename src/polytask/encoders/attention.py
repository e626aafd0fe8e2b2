"""Self-attention over the sequences of a packed stream; the only part of the encoder that sees sequence borders.

Four ways to the same numbers. On CUDA, short sequences have a kernel of their own, and longer ones a varlen kernel if
they are in half precision; on the CPU, short ones are plain products; the rest are padded rows of similar length. Knows
no weights and no tasks.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from polytask.kernels.cpu_attention import attend_on_cpu, products_fit
from polytask.kernels.short_attention import attend_short, attend_short_packed, short_fits
from polytask.stream import Layout

WIDTH = 8  # the varlen kernel's head sizes are multiples of this


def attend(q_THd: Tensor, k_THd: Tensor, v_THd: Tensor, layout: Layout, dropout: float = 0.0) -> Tensor:
    """softmax(q k' / sqrt(d)) v inside each sequence: [T, heads, head size] in and out."""
    if short_fits(q_THd, layout.max_length):
        return attend_short(q_THd, k_THd, v_THd, layout.cu_seqlens_S1, dropout, layout.max_length)
    if varlen_works(q_THd, dropout):
        return attend_varlen(q_THd, k_THd, v_THd, layout)
    if products_fit(q_THd, layout.max_length, dropout):
        return attend_on_cpu(q_THd, k_THd, v_THd, layout.lengths, dropout)
    return attend_padded(q_THd, k_THd, v_THd, layout, dropout)


def attend_packed(qkv_T3Hd: Tensor, layout: Layout, dropout: float = 0.0, scale: float | None = None) -> Tensor:
    """The same of queries, keys and values that came out of one product; `scale` in place of 1 / sqrt(d)."""
    q_THd, k_THd, v_THd = qkv_T3Hd.unbind(1)
    if short_fits(q_THd, layout.max_length):
        return attend_short_packed(qkv_T3Hd, layout.cu_seqlens_S1, dropout, layout.max_length, scale)
    if scale is not None:
        q_THd = q_THd * (scale * math.sqrt(q_THd.shape[-1]))
    return attend(q_THd, k_THd, v_THd, layout, dropout)


def varlen_works(q_THd: Tensor, dropout: float) -> bool:
    """The varlen kernel needs CUDA and half precision, and drops no attention weights."""
    return q_THd.is_cuda and q_THd.dtype in (torch.bfloat16, torch.float16) and dropout == 0.0


def attend_varlen(q_THd: Tensor, k_THd: Tensor, v_THd: Tensor, layout: Layout) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn  # noqa: PLC0415  (it takes a second, and only CUDA needs it)

    cu, size = layout.cu_seqlens_S1, q_THd.shape[-1]
    q_THd, k_THd, v_THd = widened(q_THd, k_THd, v_THd)
    out_THd = varlen_attn(q_THd, k_THd, v_THd, cu, cu, layout.max_length, layout.max_length)
    assert isinstance(out_THd, Tensor)
    return out_THd[..., :size]


def widened(q_THd: Tensor, k_THd: Tensor, v_THd: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Heads filled up with zeros to a multiple of 8, which is what the varlen kernel takes (PAL's have a size of 17).

    It divides by the root of the wider size, so the query is scaled to make up for it.
    """
    size = q_THd.shape[-1]
    more = -size % WIDTH
    if not more:
        return q_THd, k_THd, v_THd
    q_THd = q_THd * math.sqrt((size + more) / size)
    return F.pad(q_THd, (0, more)), F.pad(k_THd, (0, more)), F.pad(v_THd, (0, more))


def attend_padded(q_THd: Tensor, k_THd: Tensor, v_THd: Tensor, layout: Layout, dropout: float = 0.0) -> Tensor:
    """Each bucket of similar lengths becomes padded rows, goes through SDPA, and is put back in its place."""
    qkv_T3Hd = torch.stack((q_THd, k_THd, v_THd), dim=1)
    outs: list[Tensor] = []
    places: list[Tensor] = []
    for bucket in layout.buckets:
        block: Tensor = _Pad.apply(qkv_T3Hd, bucket.token_index, bucket.slot_index, bucket.rows * bucket.width)  # type: ignore[no-untyped-call]
        q, k, v = block.view(bucket.rows, bucket.width, *qkv_T3Hd.shape[1:]).permute(2, 0, 3, 1, 4).unbind(0)
        out_BHLd = F.scaled_dot_product_attention(q, k, v, attn_mask=bucket.mask_B11L, dropout_p=dropout)
        flat = out_BHLd.transpose(1, 2).reshape(bucket.rows * bucket.width, *q_THd.shape[1:])
        outs.append(_Pick.apply(flat, bucket.slot_index))  # type: ignore[no-untyped-call]
        places.append(bucket.token_index)
    if len(outs) == 1 and len(layout.lengths) == 1:
        return outs[0]
    back = torch.argsort(torch.cat(places))
    restored: Tensor = _Pick.apply(torch.cat(outs), back)  # type: ignore[no-untyped-call]
    return restored


class _Pad(torch.autograd.Function):
    """Copies rows into a block of zeros. Each row goes to one place, so its gradient is a plain copy back: unlike
    indexing's own gradient it adds nothing up, is deterministic and takes no atomic operations."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, source: Tensor, target: Tensor, size: int) -> Tensor:
        ctx.save_for_backward(source, target)
        ctx.rows = len(x)
        block = x.new_zeros(size, *x.shape[1:])
        block[target] = x.index_select(0, source)
        return block

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        source, target = ctx.saved_tensors
        out = grad.new_zeros(ctx.rows, *grad.shape[1:])
        out[source] = grad.index_select(0, target)
        return out, None, None, None


class _Pick(torch.autograd.Function):
    """Rows of x, each at most once; the gradient is a plain copy back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor) -> Tensor:
        ctx.save_for_backward(index)
        ctx.rows = len(x)
        return x.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (index,) = ctx.saved_tensors
        out = grad.new_zeros(ctx.rows, *grad.shape[1:])
        out[index] = grad
        return out, None
