"""Attention inside each sequence, by the fastest way that the device, the precision and the lengths allow.

On CUDA, short and long sequences have kernels of our own, whose gradients are bit-identical for the same input; without
gradients, long sequences in half precision have torch's varlen kernel. On the CPU, short sequences are plain matrix
products. Everything else is left to the definition.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from polytask.encoders.attention import attend
from polytask.fused_forms import definition_of, fuses
from polytask.kernels.cpu_attention import attend_on_cpu, products_fit
from polytask.kernels.long_attention import attend_long, attend_long_packed, long_fits
from polytask.kernels.short_attention import attend_short, attend_short_packed, short_fits
from polytask.stream import Layout

ALIGNMENT = 8  # head sizes of the varlen kernel are multiples of this


@fuses(attend)
def fused_attend(q_THd: Tensor, k_THd: Tensor, v_THd: Tensor, layout: Layout, dropout: float = 0.0) -> Tensor:
    if short_fits(q_THd, layout.max_length):
        return attend_short(q_THd, k_THd, v_THd, layout.cu_seqlens_S1, dropout, layout.max_length)
    if use_long(q_THd, dropout):
        return attend_long(q_THd, k_THd, v_THd, layout.cu_seqlens_S1, dropout, layout.max_length)
    if varlen_fits(q_THd, dropout):
        return attend_varlen(q_THd, k_THd, v_THd, layout)
    if products_fit(q_THd, layout.max_length, dropout):
        return attend_on_cpu(q_THd, k_THd, v_THd, layout.lengths, dropout)
    return definition_of(attend)(q_THd, k_THd, v_THd, layout, dropout)


def attend_packed(qkv_T3Hd: Tensor, layout: Layout, dropout: float = 0.0, scale: float | None = None) -> Tensor:
    """Attention of queries, keys and values that are one tensor; `scale` replaces 1 / sqrt(d)."""
    q_THd, k_THd, v_THd = qkv_T3Hd.unbind(1)
    if short_fits(q_THd, layout.max_length):
        return attend_short_packed(qkv_T3Hd, layout.cu_seqlens_S1, dropout, layout.max_length, scale)
    if use_long(q_THd, dropout):
        return attend_long_packed(qkv_T3Hd, layout.cu_seqlens_S1, dropout, layout.max_length, scale)
    if scale is not None:
        q_THd = q_THd * (scale * math.sqrt(q_THd.shape[-1]))
    return fused_attend(q_THd, k_THd, v_THd, layout, dropout)


def use_long(q_THd: Tensor, dropout: float) -> bool:
    """Whether to use our kernel for long sequences: where the varlen kernel cannot run, or would compute gradients,
    which it sums in an order that changes from run to run."""
    return long_fits(q_THd) and (q_THd.requires_grad or not varlen_fits(q_THd, dropout))


def varlen_fits(q_THd: Tensor, dropout: float) -> bool:
    """The varlen kernel needs CUDA and half precision, and has no dropout."""
    return q_THd.is_cuda and q_THd.dtype in (torch.bfloat16, torch.float16) and dropout == 0.0


def attend_varlen(q_THd: Tensor, k_THd: Tensor, v_THd: Tensor, layout: Layout) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn  # noqa: PLC0415  (it takes a second, and only CUDA needs it)

    cu, size = layout.cu_seqlens_S1, q_THd.shape[-1]
    q_THd, k_THd, v_THd = pad_heads(q_THd, k_THd, v_THd)
    out_THd = varlen_attn(q_THd, k_THd, v_THd, cu, cu, layout.max_length, layout.max_length)
    assert isinstance(out_THd, Tensor)
    return out_THd[..., :size]


def pad_heads(q_THd: Tensor, k_THd: Tensor, v_THd: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Pads heads with zeros to a multiple of 8, which the varlen kernel needs (PAL's heads have a size of 17).

    The kernel divides by the square root of the padded size, so the query is scaled to make up for it.
    """
    size = q_THd.shape[-1]
    more = -size % ALIGNMENT
    if not more:
        return q_THd, k_THd, v_THd
    q_THd = q_THd * math.sqrt((size + more) / size)
    return F.pad(q_THd, (0, more)), F.pad(k_THd, (0, more)), F.pad(v_THd, (0, more))
