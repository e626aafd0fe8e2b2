"""The encoder's layers as a GPU runs them fastest in bf16. `encoders/bert.py` defines what they compute.

Products leave out their biases, which the kernels behind them add (add_and_norm.py, bias_gelu.py); hidden states exist
in two precisions, for sums and for products. Where an adapter changes more at a slot than these kernels can compute,
that slot is computed as in the definition.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polytask.adapters.base import Adapter, LinearSite, SublayerSite
from polytask.encoders.bert import Bert, Layer
from polytask.fused_forms import definition_of, fuses
from polytask.kernels.add_and_norm import add_and_norm
from polytask.kernels.bias_gelu import bias_gelu
from polytask.kernels.embed_and_norm import embed_and_norm
from polytask.kernels.fused.adapter import FusedAdapter, fused_adapter
from polytask.kernels.grouped import product_type
from polytask.kernels.one_product import one_product
from polytask.kernels.pass_cache import start_pass
from polytask.kernels.row_norm import MAX_WIDTH, NO_DROPOUT, Draw, either
from polytask.kernels.side_stream import Branch
from polytask.kernels.triton_support import kernels_run
from polytask.stream import Layout, Stream

# The site of a dropout draw, which tells two draws from one seed apart.
SITES: dict[SublayerSite, int] = {"attention": 0, "ffn": 1}
OUTPUT_MAPS: dict[SublayerSite, LinearSite] = {"attention": "attention_output", "ffn": "down"}


class Hidden(NamedTuple):
    """Hidden states of the same tokens in two precisions."""

    full_TD: Tensor
    """For residual sums."""
    half_TD: Tensor
    """For products."""


def fused_layer_fits(h_TD: Tensor) -> bool:
    """Whether the kernels can run: on CUDA, under bf16 autocast, with rows that fit into one program."""
    return (
        kernels_run(h_TD.device)
        and h_TD.shape[-1] <= MAX_WIDTH
        and torch.is_autocast_enabled("cuda")
        and torch.get_autocast_dtype("cuda") == torch.bfloat16
    )


@fuses(Bert.encode)
def fused_encode(encoder: Bert, stream: Stream, adapter: Adapter, words_TD: Tensor | None = None) -> Tensor:
    fits = words_TD is None and fused_layer_fits(encoder.words.weight)
    h = fused_embed(encoder, stream, adapter) if fits else None
    if h is None:
        return definition_of(Bert.encode)(encoder, stream, adapter, words_TD)
    h_TD = h.full_TD
    for state_TD in fused_layers(encoder, h, start_pass(stream.layout), adapter):
        h_TD = state_TD
    return h_TD


@fuses(Bert.states)
def fused_states(encoder: Bert, h_TD: Tensor, layout: Layout, adapter: Adapter, start: int = 0) -> Iterator[Tensor]:
    layout = start_pass(layout)
    if fused_layer_fits(h_TD):
        h = Hidden(h_TD.float(), h_TD.to(product_type(h_TD)))
        yield from fused_layers(encoder, h, layout, adapter, start)
    else:
        yield from definition_of(Bert.states)(encoder, h_TD, layout, adapter, start)


@fuses(Bert.embed)
def fused_embedding(encoder: Bert, stream: Stream, adapter: Adapter, words_TD: Tensor | None = None) -> Tensor:
    fits = fused_layer_fits(encoder.words.weight)
    h = fused_embed(encoder, stream, adapter, words_TD) if fits else None
    return definition_of(Bert.embed)(encoder, stream, adapter, words_TD) if h is None else h.full_TD


def fused_embed(encoder: Bert, stream: Stream, adapter: Adapter, words_TD: Tensor | None = None) -> Hidden | None:
    """The input of the first layer, unless the adapter or the encoder adds more there than the kernel can compute."""
    norm, words_VD = encoder.norm, encoder.words.weight
    vectors = fused_adapter(adapter.embedding).affine("embedding", norm.weight, norm.bias, stream.layout)
    if vectors is None or encoder.project is not None:
        return None
    rate = encoder.dropout.p if encoder.training else 0.0
    seed_1 = torch.randint(2**62, (1,), device=words_VD.device) if rate else None
    # The kernel always adds a row of segments; zeros where the encoder has none.
    segments_GD = words_VD.new_zeros(1, words_VD.shape[1]) if encoder.segments is None else encoder.segments.weight
    tables = either(words_TD, words_VD), segments_GD, encoder.positions.weight
    segment_ids_T = encoder.segment_rows(stream.segment_ids_T)
    ids = stream.token_ids_T if words_TD is None else None, segment_ids_T, stream.position_ids_T
    borders_S1, half = stream.layout.cu_seqlens_S1, product_type(words_VD)
    return Hidden(*embed_and_norm(tables, ids, borders_S1, vectors, norm.eps, half, Draw(rate, seed_1)))


def fused_layers(encoder: Bert, h: Hidden, layout: Layout, adapter: Adapter, start: int = 0) -> Iterator[Tensor]:
    """The output of each layer from `start` on, given the input of layer `start`."""
    for index in range(start, len(encoder.layers)):
        layer = encoder.layers[index]
        assert isinstance(layer, Layer)
        h = FusedLayer(layer, layout, fused_adapter(adapter.layer(index)))(h)
        yield h.full_TD


class FusedLayer:
    """One layer in one pass."""

    def __init__(self, layer: Layer, layout: Layout, adapter: FusedAdapter) -> None:
        self.layer, self.layout, self.adapter = layer, layout, adapter
        self.rate = layer.dropout.p if layer.training else 0.0
        device = layer.up.weight.device
        self.seed_1 = torch.randint(2**62, (1,), device=device) if self.rate else None

    def __call__(self, h: Hidden) -> Hidden:
        layer, layout, adapter = self.layer, self.layout, self.adapter
        attention = layer.attention
        branch = Branch(worth_it=adapter.overrides("parallel"))
        branch_TD = branch.run(lambda: adapter.parallel(h.half_TD, layout))
        mixed_TD = attention.mix(h.half_TD, layout, adapter.adapter)
        a = self.sublayer("attention", attention.output, mixed_TD, layer.attention_norm, h.full_TD)
        by_kernel = layer.activation is F.gelu and not adapter.changes_linear("up")
        up_TF, bias_F = self.product("up", layer.up, a.half_TD, add_bias=not by_kernel)
        up_TF = layer.activation(up_TF) if bias_F is None else bias_gelu(up_TF, bias_F)
        branch.join()
        out = self.sublayer("ffn", layer.down, up_TF, layer.ffn_norm, a.full_TD, branch_TD)
        if not adapter.changes_output():
            return out
        full_TD = adapter.adapter.output(out.full_TD, layout)
        return Hidden(full_TD, full_TD.to(out.half_TD.dtype))

    def sublayer(
        self,
        site: SublayerSite,
        base: nn.Linear,
        x_TD: Tensor,
        norm: nn.LayerNorm,
        residual_TD: Tensor,
        branch_TD: Tensor | None = None,
    ) -> Hidden:
        """LN(residual + Drop(base(x)) + branch)."""
        layer, layout, adapter = self.layer, self.layout, self.adapter
        vectors = adapter.affine(site, norm.weight, norm.bias, layout)
        by_kernel = vectors is not None and not adapter.changes_sublayer(site)
        y_TD, bias_D = self.product(OUTPUT_MAPS[site], base, x_TD, add_bias=not by_kernel)
        dropout = Draw(self.rate, self.seed_1, SITES[site])
        if not by_kernel:
            y_TD, change_TD, bias_D = adapter.sublayer_terms(site, layer.dropout(y_TD), layout)
            dropout, branch_TD = NO_DROPOUT, _add(branch_TD, change_TD)
        if vectors is not None:
            terms = residual_TD, y_TD.to(product_type(x_TD)), bias_D, branch_TD
            return Hidden(*add_and_norm(*terms, vectors, norm.eps, dropout))
        y_TD = y_TD if bias_D is None else y_TD + bias_D
        total_TD = residual_TD + y_TD if branch_TD is None else residual_TD + y_TD + branch_TD
        full_TD = adapter.adapter.norm(site, norm, total_TD, layout)
        return Hidden(full_TD, full_TD.to(product_type(x_TD)))

    def product(self, site: LinearSite, base: nn.Linear, x_TD: Tensor, add_bias: bool) -> tuple[Tensor, Tensor | None]:
        """The output of a linear map, and its bias if that is still to be added."""
        if self.adapter.changes_linear(site):
            return self.adapter.adapter.linear(site, base, x_TD, self.layout), None
        if add_bias:
            return one_product(x_TD, [base.weight], [base.bias]), None
        return one_product(x_TD, [base.weight]), base.bias


def _add(one_TD: Tensor | None, other_TD: Tensor | None) -> Tensor | None:
    return other_TD if one_TD is None else one_TD if other_TD is None else one_TD + other_TD
