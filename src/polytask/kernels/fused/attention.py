"""Queries, keys and values of all heads as one product, which a GPU computes faster than three."""

from torch import Tensor

from polytask.adapters.base import LayerAdapter, LinearSite
from polytask.encoders.bert import Attention
from polytask.fused_forms import definition_of, fuses
from polytask.kernels.attention import attend_packed
from polytask.kernels.fused.adapter import fused_adapter
from polytask.kernels.one_product import one_product
from polytask.stream import Layout

QKV: tuple[LinearSite, ...] = ("query", "key", "value")


@fuses(Attention.mix)
def fused_mix(attention: Attention, x_TD: Tensor, layout: Layout, adapter: LayerAdapter) -> Tensor:
    if attention.bias or not (x_TD.is_cuda and is_plain(adapter)):
        return definition_of(Attention.mix)(attention, x_TD, layout, adapter)
    return one_product_mix(attention, x_TD, layout)


def is_plain(adapter: LayerAdapter) -> bool:
    """Whether the adapter leaves attention and the maps before it as they are."""
    fused = fused_adapter(adapter)
    return not (fused.changes_attention() or any(map(fused.changes_linear, QKV)))


def one_product_mix(attention: Attention, x_TD: Tensor, layout: Layout) -> Tensor:
    maps = (attention.query, attention.key, attention.value)
    qkv_T3D = one_product(x_TD, [m.weight for m in maps], [m.bias for m in maps])
    dropout = attention.dropout if attention.training else 0.0
    return attend_packed(qkv_T3D.unflatten(-1, (3, attention.heads, -1)), layout, dropout).flatten(1)
