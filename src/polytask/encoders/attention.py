"""Self-attention over the sequences of a packed stream: the only part of the encoder that sees sequence borders."""

from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from polytask.fused_forms import fusible
from polytask.stream import Bucket, Layout


class ScoreBias(Protocol):
    """What is added to attention scores, by the positions of query and key in their sequence."""

    def __call__(self, length: int, prefix: int) -> Tensor:
        """[heads or 1, length, length] for a sequence of this length; -inf where a query does not see a key.

        The first `prefix` positions are those that an adapter put before the text: every query sees them, and nothing
        is added to their scores. A query always sees itself.
        """


@fusible
def attend(q_THd: Tensor, k_THd: Tensor, v_THd: Tensor, layout: Layout, dropout: float = 0.0) -> Tensor:
    """softmax(q k' / sqrt(d)) v inside each sequence: [T, heads, head size] in and out.

    Each bucket of sequences of similar length becomes padded rows, goes through torch's attention, and is put back.
    """
    return _attend_buckets(q_THd, k_THd, v_THd, layout, dropout, None)


def attend_with_bias(
    q_THd: Tensor, k_THd: Tensor, v_THd: Tensor, layout: Layout, bias: ScoreBias, dropout: float = 0.0
) -> Tensor:
    """softmax(q k' / sqrt(d) + bias) v inside each sequence: [T, heads, head size] in and out."""
    return _attend_buckets(q_THd, k_THd, v_THd, layout, dropout, bias)


def _attend_buckets(
    q_THd: Tensor, k_THd: Tensor, v_THd: Tensor, layout: Layout, dropout: float, bias: ScoreBias | None
) -> Tensor:
    qkv_T3Hd = torch.stack((q_THd, k_THd, v_THd), dim=1)
    outs: list[Tensor] = []
    places: list[Tensor] = []
    for bucket in layout.buckets:
        if bucket.token_index is None:
            return _attend_block(qkv_T3Hd, bucket, layout.prefix, dropout, bias)
        block: Tensor = _Pad.apply(qkv_T3Hd, bucket.token_index, bucket.slot_index, bucket.rows * bucket.width)  # type: ignore[no-untyped-call]
        flat = _attend_block(block, bucket, layout.prefix, dropout, bias)
        outs.append(_Pick.apply(flat, bucket.slot_index))  # type: ignore[no-untyped-call]
        places.append(bucket.token_index)
    if len(outs) == 1 and len(layout.lengths) == 1:
        return outs[0]
    back = torch.argsort(torch.cat(places))
    restored: Tensor = _Pick.apply(torch.cat(outs), back)  # type: ignore[no-untyped-call]
    return restored


def _attend_block(qkv_T3Hd: Tensor, bucket: Bucket, prefix: int, dropout: float, bias: ScoreBias | None) -> Tensor:
    """Attention in the padded rows of a bucket, given as one block."""
    rows, width = bucket.rows, bucket.width
    q, k, v = qkv_T3Hd.view(rows, width, *qkv_T3Hd.shape[1:]).permute(2, 0, 3, 1, 4).unbind(0)
    mask = bucket.mask_B11L if bias is None else _biased_mask(bias(width, prefix), bucket).to(q.dtype)
    out_BHLd = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout)
    return out_BHLd.transpose(1, 2).reshape(rows * width, *qkv_T3Hd.shape[2:])


def _biased_mask(bias_HLL: Tensor, bucket: Bucket) -> Tensor:
    """The bias for every row of a bucket, -inf at padding. Padding sees itself: a softmax over nothing would be NaN."""
    if bucket.mask_B11L is None:
        return bias_HLL[None]
    itself_LL = torch.eye(bucket.width, dtype=torch.bool, device=bias_HLL.device)
    return bias_HLL.masked_fill(~(bucket.mask_B11L | itself_LL), -torch.inf)


class _Pad(torch.autograd.Function):
    """Copies rows into a block of zeros.

    Each row goes to one place, so its gradient is a plain copy back. The gradient of indexing would add up with atomic
    operations, which are not deterministic.
    """

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
    """Selects rows of x, each at most once; the gradient is a plain copy back."""

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
