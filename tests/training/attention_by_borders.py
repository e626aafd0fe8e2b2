"""Attention that reads the sequence borders from a tensor, as CUDA's kernels do, so that it can be recorded."""

from typing import Any

import pytest
import torch
from torch import Tensor

from polytask.kernels import attention
from polytask.kernels.cpu_attention import attend_on_cpu
from polytask.stream import Layout


def use_on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the CPU's own attention, which reads the lengths, and dropout, whose masks read a constant."""
    fits, attend = attention.varlen_fits, attention.attend_varlen

    def fits_here(q_THd: Tensor, dropout: float) -> bool:
        return not q_THd.is_cuda or fits(q_THd, dropout)

    def attend_here(q_THd: Tensor, k_THd: Tensor, v_THd: Tensor, layout: Layout) -> Tensor:
        return (attend if q_THd.is_cuda else attend_by_borders)(q_THd, k_THd, v_THd, layout)

    monkeypatch.setattr("polytask.kernels.attention.varlen_fits", fits_here)
    monkeypatch.setattr("polytask.kernels.attention.attend_varlen", attend_here)
    monkeypatch.setattr("polytask.kernels.dropout.AS_INTEGERS", {})


def attend_by_borders(q_THd: Tensor, k_THd: Tensor, v_THd: Tensor, layout: Layout, *_: Any) -> Tensor:
    """Self-attention within each sequence of a small stream; for large ones, the CPU's own."""
    if len(q_THd) > 1024:
        return attend_on_cpu(q_THd, k_THd, v_THd, layout.lengths, 0.0)
    queries_T, keys_T = (
        torch.bucketize(torch.arange(len(t)), layout.cu_seqlens_S1[1:].long(), right=True) for t in (q_THd, k_THd)
    )
    mask_TT = torch.where(queries_T[:, None] == keys_T, 0.0, -torch.inf).to(q_THd.dtype)
    q_HTd, k_HTd, v_HTd = (t.transpose(0, 1) for t in (q_THd, k_THd, v_THd))
    weights_HTT = (q_HTd @ k_HTd.mT * q_THd.shape[-1] ** -0.5 + mask_TT).softmax(-1)
    return (weights_HTT.to(v_HTd.dtype) @ v_HTd).transpose(0, 1)
