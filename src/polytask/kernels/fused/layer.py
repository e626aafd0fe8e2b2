"""The encoder's layers as a GPU runs them fastest in bf16. The same as `bert.Layer`, which says what they compute.

Products are without their biases, which the kernels behind them add (encoder/add_norm.py, encoder/bias_gelu.py); hidden
states come in two precisions, for sums and for products. Where an adapter does more at a slot than these kernels know,
that slot is computed as in `bert.Layer`. Knows no concrete adapter.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polytask.adapters.base import Adapter, LayerAdapter, LinearSite, SublayerSite
from polytask.kernels.add_and_norm import WIDEST, add_norm
from polytask.kernels.bias_gelu import bias_gelu
from polytask.kernels.embed_and_norm import embed_norm
from polytask.kernels.one_product import one_product
from polytask.kernels.side_stream import Branch
from polytask.kernels.triton_support import kernels_run
from polytask.stream import Layout, Stream

if TYPE_CHECKING:
    from polytask.encoders.bert import Bert, Layer

ATTENTION, FFN = 0, 1  # which of a layer's draws


class Hidden(NamedTuple):
    """States of the same tokens twice."""

    full_TD: Tensor
    """For the residual sum."""
    half_TD: Tensor
    """For products."""


def fused_layer_fits(h_TD: Tensor) -> bool:
    """Whether the kernels can run where this is: on CUDA, in bf16, on rows that are not too wide for a program."""
    return (
        kernels_run(h_TD.device)
        and h_TD.shape[-1] <= WIDEST
        and torch.is_autocast_enabled("cuda")
        and torch.get_autocast_dtype("cuda") == torch.bfloat16
    )


def product_type(x: Tensor) -> torch.dtype:
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype


def swift_embed(encoder: "Bert", stream: Stream, adapter: Adapter) -> Hidden | None:
    """The first layer's input, unless the adapter does more there than these kernels know."""
    vectors = adapter.embedding.norm_vectors("embedding", encoder.norm.weight, encoder.norm.bias, stream.layout)
    if vectors is None:
        return None
    words_VD = encoder.words.weight
    share = encoder.dropout.p if encoder.training else 0.0
    seed_1 = torch.randint(2**62, (1,), device=words_VD.device) if share else None
    ids = stream.token_ids_T, stream.segment_ids_T, stream.position_ids_T, stream.layout.cu_seqlens_S1
    tables = words_VD, encoder.segments.weight, encoder.positions.weight
    return Hidden(*embed_norm(*tables, *ids, *vectors, encoder.norm.eps, product_type(words_VD), share, seed_1))


def swift_states(
    encoder: "Bert", h: Tensor | Hidden, layout: Layout, adapter: Adapter, start: int = 0
) -> Iterator[Tensor]:
    """The output of each layer from `start` on, given that layer's input."""
    if isinstance(h, Tensor):
        h = Hidden(h.float(), h.to(product_type(h)))
    for index, layer in list(enumerate(encoder.layers))[start:]:
        h = swift_layer(layer, h, layout, adapter.layer(index))  # type: ignore[arg-type]
        yield h.full_TD


def swift_layer(layer: "Layer", h: Hidden, layout: Layout, adapter: LayerAdapter) -> Hidden:
    drops = layer.training and layer.dropout.p > 0
    seed_1 = torch.randint(2**62, (1,), device=h.full_TD.device) if drops else None

    def settled(
        site: SublayerSite,
        base: nn.Linear,
        x_TD: Tensor,
        norm: nn.LayerNorm,
        residual_TD: Tensor,
        branch_TD: Tensor | None = None,
    ) -> Hidden:
        """LN(residual + Drop(base(x)) + branch)."""
        name: LinearSite = "attention_output" if site == "attention" else "down"
        vectors = adapter.norm_vectors(site, norm.weight, norm.bias, layout)
        at_once = vectors is not None and adapter.plain_sublayer(site)
        y_TD, bias_D = product(name, base, x_TD, layout, adapter, biased=not at_once)
        share = layer.dropout.p if drops else 0.0
        if not at_once:
            y_TD, change_TD, bias_D = adapter.sublayer_sum(site, layer.dropout(y_TD), layout)
            share, branch_TD = 0.0, _sum(branch_TD, change_TD)
        if vectors is not None:
            y_TD = y_TD.to(h.half_TD.dtype)
            number = ATTENTION if site == "attention" else FFN
            return Hidden(*add_norm(residual_TD, y_TD, bias_D, branch_TD, *vectors, norm.eps, share, seed_1, number))
        y_TD = y_TD if bias_D is None else y_TD + bias_D
        total_TD = residual_TD + y_TD if branch_TD is None else residual_TD + y_TD + branch_TD
        full_TD = adapter.norm(site, norm, total_TD, layout)
        return Hidden(full_TD, full_TD.to(h.half_TD.dtype))

    attention = layer.attention
    branch = Branch(h.half_TD, worth_it=type(adapter).parallel is not LayerAdapter.parallel)
    branch_TD = branch.run(lambda: adapter.parallel(h.half_TD, layout))
    mixed_TD = attention.mix(h.half_TD, layout, adapter)
    a = settled("attention", attention.output, mixed_TD, layer.attention_norm, h.full_TD)
    by_kernel = layer.activation is F.gelu and adapter.plain_linear("up")
    up_TF, bias_F = product("up", layer.up, a.half_TD, layout, adapter, biased=not by_kernel)
    up_TF = layer.activation(up_TF) if bias_F is None else bias_gelu(up_TF, bias_F)
    branch.joined()
    return settled("ffn", layer.down, up_TF, layer.ffn_norm, a.full_TD, branch_TD)


def _sum(one_TD: Tensor | None, other_TD: Tensor | None) -> Tensor | None:
    return other_TD if one_TD is None else one_TD if other_TD is None else one_TD + other_TD


def product(
    site: LinearSite, base: nn.Linear, x_TD: Tensor, layout: Layout, adapter: LayerAdapter, biased: bool
) -> tuple[Tensor, Tensor | None]:
    """A linear map's output, and its bias if that is still to be added."""
    if not adapter.plain_linear(site):
        return adapter.linear(site, base, x_TD, layout), None
    if biased:
        return one_product(x_TD, [base.weight], [base.bias]), None
    return one_product(x_TD, [base.weight]), base.bias
