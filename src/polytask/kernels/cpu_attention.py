"""Self-attention over a packed stream on the CPU, as plain matrix products over rows of similar length.

torch's own CPU kernel works in blocks that sequences of 30 tokens do not fill; in bf16 its backward pass takes four
times as long as in float32; and it has no dropout. Here sequences of similar length become one batch of products, in
float32 for any input: products this small are no faster in bf16. Each head of a token is copied directly to its place
in a batch and back, so nothing is transposed or concatenated on the way.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from polytask.kernels.dropout import dropout_mask

MAX_LENGTH = 256
"""With gradients: the attention weights of longer sequences, stored for the backward pass, need too much memory."""
MAX_LENGTH_FORWARD = 64
"""Without gradients: torch's kernel is faster for longer sequences."""


@dataclass(frozen=True)
class Batch:
    """Sequences of similar length, whose heads are `rows` matrices of `width` tokens."""

    first: int
    """Its first place."""
    first_pair: int
    rows: int
    width: int
    bias_R1L: Tensor | None
    """0 for a token, -inf for padding; None when nothing is padded."""

    def of(self, x_Pd: Tensor) -> Tensor:
        """This batch's part of a tensor with a row for each place."""
        return x_Pd.narrow(0, self.first, self.rows * self.width).view(self.rows, self.width, -1)

    def pairs_of(self, x_W: Tensor) -> Tensor:
        """This batch's part of a tensor with an element for each pair of places."""
        size = self.rows * self.width**2
        return x_W.narrow(0, self.first_pair, size).view(self.rows, self.width, self.width)


@dataclass(frozen=True)
class Places:
    """The places of a stream's tokens in the batches: P places for T * H heads of tokens, W pairs of places."""

    batches: tuple[Batch, ...]
    source_P: Tensor
    """For each place, its head of a token (token * heads + head); padding repeats the last token of its sequence."""
    place_N: Tensor
    """For each head of a token, its place."""
    real_P1: Tensor
    """1 for a token, 0 for padding."""
    pairs: int


@lru_cache(maxsize=8)  # all layers of a step use the same places
def places(lengths: tuple[int, ...], heads: int) -> Places:
    """The sequences sorted by length; a new batch starts where padding would exceed a quarter of a row."""
    starts = [0, *accumulate(lengths)]
    groups: list[list[int]] = []
    for s in sorted((s for s, length in enumerate(lengths) if length), key=lambda s: -lengths[s]):
        if not groups or lengths[s] * 4 < lengths[groups[-1][0]] * 3:
            groups.append([])
        groups[-1].append(s)
    batches, sources, real = [], [], []
    place_TH = torch.empty(starts[-1], heads, dtype=torch.int64)
    first = first_pair = 0
    for group in groups:
        width, rows = lengths[group[0]], len(group) * heads
        columns = torch.arange(width)
        lengths_B1 = torch.tensor([[lengths[s]] for s in group])
        real_BL = columns < lengths_B1
        tokens_BL = torch.tensor([[starts[s]] for s in group]) + torch.minimum(columns, lengths_B1 - 1)
        heads_BHL = tokens_BL[:, None] * heads + torch.arange(heads)[:, None]
        places_BHL = first + torch.arange(rows * width).view(heads_BHL.shape)
        place_TH[tokens_BL[real_BL]] = places_BHL.transpose(1, 2)[real_BL]
        sources.append(heads_BHL.flatten())
        real_RL = real_BL.repeat_interleave(heads, 0)
        real.append(real_RL.flatten().float())
        bias_R1L = torch.zeros(rows, 1, width).masked_fill_(~real_RL[:, None], -math.inf)
        batches.append(Batch(first, first_pair, rows, width, None if bool(real_BL.all()) else bias_R1L))
        first += rows * width
        first_pair += rows * width**2
    return Places(tuple(batches), torch.cat(sources), place_TH.flatten(), torch.cat(real)[:, None], first_pair)


def products_fit(q_THd: Tensor, longest: int, dropout: float) -> bool:
    """Whether `attend_on_cpu` pays off for a stream whose longest sequence has this many tokens."""
    learns = torch.is_grad_enabled() and q_THd.requires_grad
    return q_THd.device.type == "cpu" and (dropout > 0 or longest <= (MAX_LENGTH if learns else MAX_LENGTH_FORWARD))


def attend_on_cpu(q_THd: Tensor, k_THd: Tensor, v_THd: Tensor, lengths: tuple[int, ...], dropout: float) -> Tensor:
    """softmax(q k' / sqrt(d)) v inside each sequence: [T, heads, head size] in and out."""
    where = places(lengths, q_THd.shape[1])
    with torch.autocast("cpu", enabled=False):
        out_THd: Tensor = _Attend.apply(q_THd, k_THd, v_THd, where, dropout)  # type: ignore[no-untyped-call]
    return out_THd


class _Attend(torch.autograd.Function):
    """Operations cover all batches at once where possible, because each one has a fixed cost."""

    @staticmethod
    def forward(ctx: Any, q_THd: Tensor, k_THd: Tensor, v_THd: Tensor, where: Places, dropout: float) -> Tensor:
        q_Pd, k_Pd, v_Pd = (_to_places(t, where) for t in (q_THd, k_THd, v_THd))
        q_Pd.mul_(q_THd.shape[-1] ** -0.5)
        scores_W, weights_W = q_Pd.new_empty(where.pairs), q_Pd.new_empty(where.pairs)
        for batch in where.batches:
            q, k_across, scores_RLL = batch.of(q_Pd), batch.of(k_Pd).transpose(1, 2), batch.pairs_of(scores_W)
            if batch.bias_R1L is None:
                torch.bmm(q, k_across, out=scores_RLL)
            else:
                torch.baddbmm(batch.bias_R1L.to(q.dtype), q, k_across, out=scores_RLL)
            torch.softmax(scores_RLL, -1, out=batch.pairs_of(weights_W))
        mask_W = dropout_mask((where.pairs,), dropout, q_Pd.dtype) if dropout else None
        left_W = weights_W if mask_W is None else weights_W * mask_W
        out_Pd = torch.empty_like(q_Pd)
        for batch in where.batches:
            torch.bmm(batch.pairs_of(left_W), batch.of(v_Pd), out=batch.of(out_Pd))
        ctx.save_for_backward(q_Pd, k_Pd, v_Pd, weights_W, mask_W)
        ctx.where = where
        return _from_places(out_Pd, where, q_THd)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_THd: Tensor) -> tuple[Tensor | None, ...]:
        with torch.autocast("cpu", enabled=False):  # the backward pass may run under autocast
            return _Attend._backward(ctx, grad_THd)

    @staticmethod
    def _backward(ctx: Any, grad_THd: Tensor) -> tuple[Tensor | None, ...]:
        where: Places = ctx.where
        q_Pd, k_Pd, v_Pd, weights_W, mask_W = ctx.saved_tensors
        grad_Pd = _to_places(grad_THd, where).mul_(where.real_P1)  # padding repeats a token, whose gradient counts once
        left_W = weights_W if mask_W is None else weights_W * mask_W
        dweights_W = torch.empty_like(weights_W)
        dq_Pd, dk_Pd, dv_Pd = (torch.empty_like(q_Pd) for _ in range(3))
        for batch in where.batches:
            grad = batch.of(grad_Pd)
            torch.bmm(batch.pairs_of(left_W).transpose(1, 2), grad, out=batch.of(dv_Pd))
            torch.bmm(grad, batch.of(v_Pd).transpose(1, 2), out=batch.pairs_of(dweights_W))
        if mask_W is not None:
            dweights_W.mul_(mask_W)
        for batch in where.batches:
            dweights_RLL, weights_RLL = batch.pairs_of(dweights_W), batch.pairs_of(weights_W)
            dscores_RLL = torch._softmax_backward_data(dweights_RLL, weights_RLL, -1, weights_RLL.dtype)
            torch.bmm(dscores_RLL, batch.of(k_Pd), out=batch.of(dq_Pd))
            torch.bmm(dscores_RLL.transpose(1, 2), batch.of(q_Pd), out=batch.of(dk_Pd))
        dq_Pd.mul_(grad_THd.shape[-1] ** -0.5)
        return *(_from_places(t, where, grad_THd) for t in (dq_Pd, dk_Pd, dv_Pd)), None, None


def _to_places(x_THd: Tensor, where: Places) -> Tensor:
    """The heads of tokens in their places, in float32 (or in float64, if x is)."""
    moved_Pd = x_THd.reshape(-1, x_THd.shape[-1]).index_select(0, where.source_P)
    return moved_Pd if x_THd.dtype == torch.float64 else moved_Pd.float()


def _from_places(x_Pd: Tensor, where: Places, like_THd: Tensor) -> Tensor:
    return x_Pd.index_select(0, where.place_N).to(like_THd.dtype).view(like_THd.shape)
