"""Attention that reads the sequence borders from a tensor, as CUDA's kernels do, so that it can be recorded."""

from typing import Any

import torch
from torch import Tensor

from polytask.kernels.cpu_attention import attend_on_cpu
from polytask.stream import Layout


def attend_by_borders(q_THd: Tensor, k_THd: Tensor, v_THd: Tensor, layout: Layout, *_: Any) -> Tensor:
    """Self-attention within each sequence of a small stream; for large ones, the CPU's own."""
    if len(q_THd) > 1024:
        return attend_on_cpu(q_THd, k_THd, v_THd, layout.lengths, 0.0)
    queries_T, keys_T = (
        torch.bucketize(torch.arange(len(t)), layout.cu_seqlens_S1[1:].long(), right=True) for t in (q_THd, k_THd)
    )
    mask_TT = torch.where(queries_T[:, None] == keys_T, 0.0, -torch.inf).to(q_THd.dtype)
    q_HTd, k_HTd, v_HTd = (t.transpose(0, 1) for t in (q_THd, k_THd, v_THd))
    return (
        (q_HTd @ k_HTd.mT * q_THd.shape[-1] ** -0.5 + mask_TT).softmax(-1).to(v_HTd.dtype).matmul(v_HTd).transpose(0, 1)
    )
