"""Self-attention over a packed stream on the CPU, as plain matrix products over rows of similar length.

torch's own kernel for the CPU works in blocks, which sequences of 30 tokens do not fill; in bf16 its backward pass
takes four times as long as in float32; and it has no dropout. Here sequences of similar length become one batch of
products, in float32 whatever comes in: products this small are no faster in bf16. A head of a token is moved straight
to its place in a batch and back, so nothing is transposed or put together on the way. Knows tensors and lengths only.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from polytask.trunk.dropout import kept

LONGEST = 256
"""With a gradient to come: longer sequences' weights, kept until then, take more room than products save time."""
LONGEST_FORWARD = 64
"""Without one torch's kernel is the faster from here on."""


@dataclass(frozen=True)
class Batch:
    """Sequences of similar length: their heads are `rows` matrices of `width` tokens, from place `first` on."""

    first: int
    rows: int
    width: int
    bias_R1L: Tensor | None
    """0 for a token, -inf for padding; None when nothing is padded."""
    real_RL1: Tensor | None
    """1 for a token, 0 for padding."""

    def of(self, x_Pd: Tensor) -> Tensor:
        size = self.rows * self.width
        return x_Pd[self.first : self.first + size].view(self.rows, self.width, -1)


@dataclass(frozen=True)
class Places:
    """Where the heads of a stream's tokens lie in the batches: P places for T times H heads."""

    batches: tuple[Batch, ...]
    there_P: Tensor
    """Which head (token * heads + head) is in each place; padding repeats its sequence's last token."""
    back_N: Tensor
    """Each head's place."""


@lru_cache(maxsize=8)  # the layers of a step ask for the same one, forwards and backwards
def places(lengths: tuple[int, ...], heads: int) -> Places:
    """Sequences sorted by length and cut where padding them together would waste more than a quarter of a row."""
    starts = [0]
    for length in lengths:
        starts.append(starts[-1] + length)
    groups: list[list[int]] = []
    for s in sorted((s for s, length in enumerate(lengths) if length), key=lambda s: -lengths[s]):
        if not groups or lengths[s] * 4 < lengths[groups[-1][0]] * 3:
            groups.append([])
        groups[-1].append(s)
    batches, there = [], []
    back_TH = torch.empty(starts[-1], heads, dtype=torch.int64)
    first = 0
    for group in groups:
        width = lengths[group[0]]
        columns = torch.arange(width)
        lengths_B1 = torch.tensor([[lengths[s]] for s in group])
        real_BL = columns < lengths_B1
        tokens_BL = torch.tensor([[starts[s]] for s in group]) + torch.minimum(columns, lengths_B1 - 1)
        heads_BHL = tokens_BL[:, None] * heads + torch.arange(heads)[:, None]
        places_BHL = first + torch.arange(heads_BHL.numel()).view(heads_BHL.shape)
        back_TH[tokens_BL[real_BL]] = places_BHL.transpose(1, 2)[real_BL]
        there.append(heads_BHL.flatten())
        real_RL = None if bool(real_BL.all()) else real_BL.repeat_interleave(heads, 0)
        batches.append(
            Batch(
                first,
                len(group) * heads,
                width,
                None if real_RL is None else torch.zeros(real_RL.shape).masked_fill_(~real_RL, -math.inf)[:, None],
                None if real_RL is None else real_RL[..., None].float(),
            )
        )
        first += heads_BHL.numel()
    return Places(tuple(batches), torch.cat(there), back_TH.flatten())


def products_fit(q_THd: Tensor, longest: int, dropout: float) -> bool:
    """Whether this is the way for a stream whose longest sequence has so many tokens."""
    learns = torch.is_grad_enabled() and q_THd.requires_grad
    return q_THd.device.type == "cpu" and (dropout > 0 or longest <= (LONGEST if learns else LONGEST_FORWARD))


def attend_on_cpu(q_THd: Tensor, k_THd: Tensor, v_THd: Tensor, lengths: tuple[int, ...], dropout: float) -> Tensor:
    """softmax(q k' / sqrt(d)) v inside each sequence: [T, heads, head size] in and out."""
    where = places(lengths, q_THd.shape[1])
    with torch.autocast("cpu", enabled=False):
        out_THd: Tensor = _Attend.apply(q_THd, k_THd, v_THd, where, dropout)  # type: ignore[no-untyped-call]
    return out_THd


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q_THd: Tensor, k_THd: Tensor, v_THd: Tensor, where: Places, dropout: float) -> Tensor:
        scale = q_THd.shape[-1] ** -0.5
        q_Pd, k_Pd, v_Pd = (_there(t, where) for t in (q_THd, k_THd, v_THd))
        out_Pd = torch.empty_like(q_Pd)
        weights, masks = [], []
        for batch in where.batches:
            q, k, v = batch.of(q_Pd), batch.of(k_Pd), batch.of(v_Pd)
            if batch.bias_R1L is None:
                scores_RLL = torch.bmm(q, k.transpose(1, 2)).mul_(scale)
            else:
                scores_RLL = torch.baddbmm(batch.bias_R1L.to(q.dtype), q, k.transpose(1, 2), alpha=scale)
            weights.append(scores_RLL.softmax(-1))
            if dropout:
                masks.append(kept(scores_RLL.shape, dropout, q.dtype))
            torch.bmm(weights[-1] * masks[-1] if dropout else weights[-1], v, out=batch.of(out_Pd))
        ctx.save_for_backward(q_Pd, k_Pd, v_Pd, *weights, *masks)
        ctx.where, ctx.scale = where, scale
        return _back(out_Pd, where, q_THd)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_THd: Tensor) -> tuple[Tensor | None, ...]:
        with torch.autocast("cpu", enabled=False):  # it may be asked for inside a region of half precision
            return _Attend._backward(ctx, grad_THd)

    @staticmethod
    def _backward(ctx: Any, grad_THd: Tensor) -> tuple[Tensor | None, ...]:
        where, scale = ctx.where, ctx.scale
        q_Pd, k_Pd, v_Pd, *kept_ones = ctx.saved_tensors
        weights, masks = kept_ones[: len(where.batches)], kept_ones[len(where.batches) :]
        grad_Pd = _there(grad_THd, where)
        dq_Pd, dk_Pd, dv_Pd = (torch.empty_like(q_Pd) for _ in range(3))
        for number, batch in enumerate(where.batches):
            q, k, v, grad = batch.of(q_Pd), batch.of(k_Pd), batch.of(v_Pd), batch.of(grad_Pd)
            if batch.real_RL1 is not None:
                grad.mul_(batch.real_RL1)  # padding repeats a token, whose gradient must count once
            w_RLL = weights[number]
            torch.bmm((w_RLL * masks[number] if masks else w_RLL).transpose(1, 2), grad, out=batch.of(dv_Pd))
            dw_RLL = torch.bmm(grad, v.transpose(1, 2))
            if masks:
                dw_RLL.mul_(masks[number])
            ds_RLL = torch._softmax_backward_data(dw_RLL, w_RLL, -1, w_RLL.dtype).mul_(scale)
            torch.bmm(ds_RLL, k, out=batch.of(dq_Pd))
            torch.bmm(ds_RLL.transpose(1, 2), q, out=batch.of(dk_Pd))
        return *(_back(t, where, grad_THd) for t in (dq_Pd, dk_Pd, dv_Pd)), None, None


def _there(x_THd: Tensor, where: Places) -> Tensor:
    """Heads in their places, in float32 (or float64, where that came in)."""
    moved_Pd = x_THd.reshape(-1, x_THd.shape[-1]).index_select(0, where.there_P)
    return moved_Pd if x_THd.dtype == torch.float64 else moved_Pd.float()


def _back(x_Pd: Tensor, where: Places, like_THd: Tensor) -> Tensor:
    return x_Pd.index_select(0, where.back_N).to(like_THd.dtype).view(like_THd.shape)
