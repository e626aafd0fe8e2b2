"""BERT on packed streams: embeddings, post-norm layers, pooler (Devlin et al. 2019).

RoBERTa, XLM-R, DistilBERT, ELECTRA and MPNet are this encoder with other embeddings or attention scores: see the fields
of `BertShape`. `pretrained/kinds.py` says which of them has which.

Every linear map, norm and activation works on [T, D] without padding. Task-specific parts enter through the adapter's
slots and are never part of the encoder: its parameter names do not depend on the adapter.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import torch
from torch import Tensor, nn

from polytask.adapters.base import Adapter, LayerAdapter
from polytask.encoders.attention import ScoreBias, attend, attend_with_bias
from polytask.encoders.base import ACTIVATIONS, Dropout, Encoder, EncoderShape
from polytask.fused_forms import fusible
from polytask.settings import Bounds, Size
from polytask.stream import Layout, Stream


@dataclass(frozen=True)
class BertShape(EncoderShape):
    """The sizes and rates of a BERT, or of one of its variations (`kind`), which differ in these fields."""

    segments: Annotated[int, Bounds(0, 2**16)] = 2
    """Rows of the table of segments. With one row, it is used for every token; with none, there is no such table."""
    embedding: Size | None = None
    """The size of the embeddings, if a linear map projects them to the hidden size (ELECTRA)."""
    first_position: Annotated[int, Bounds(0, 10**6)] = 0
    """The row of Hugging Face's table of positions that the first token uses (RoBERTa: the one after padding's)."""
    relative_positions: bool = False
    """Whether attention scores have a bias for the distance of the tokens (MPNet)."""

    @property
    def embedding_size(self) -> int:
        return self.embedding or self.hidden

    @property
    def plain_definition(self) -> str | None:
        if not self.relative_positions:
            return None
        return "its attention scores have a position bias, for which there is no kernel"


class RelativeBias(nn.Embedding):
    """A bias of attention scores for the distance between query and key, shared by all layers (MPNet, as in T5).

    Half of the buckets is for keys before the query and half for those behind it: one for each small distance, and
    logarithmically wider ones up to a distance of 128.
    """

    BUCKETS, FARTHEST = 32, 128

    def __init__(self, heads: int) -> None:
        super().__init__(self.BUCKETS, heads)

    def scores(self, length: int, prefix: int) -> Tensor:
        positions_L = torch.arange(length, device=self.weight.device)
        buckets_LL = self.bucket(positions_L - positions_L[:, None])
        bias_HLL: Tensor = super().forward(buckets_LL).permute(2, 0, 1)
        return bias_HLL.masked_fill(positions_L < prefix, 0.0) if prefix else bias_HLL

    def bucket(self, distance: Tensor) -> Tensor:
        """The bucket of the distance of a key from the query; negative for keys before it."""
        half = self.BUCKETS // 2
        exact = half // 2
        far = distance.abs()
        # The arithmetic of transformers, for the same rounding.
        scale = (far.float() / exact).log() / math.log(self.FARTHEST / exact)
        wide = exact + (scale * (half - exact)).clamp(min=0).long()
        return (distance > 0) * half + torch.where(far < exact, far, wide.clamp(max=half - 1))


class Attention(nn.Module):
    """Multi-head self-attention with its output map; the layer adds the residual."""

    def __init__(self, hidden: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        # In a tuple, because the layers share it: as a submodule it would be in the state of every layer.
        self.bias: tuple[RelativeBias, ...] = ()
        self.query = nn.Linear(hidden, hidden)
        self.key = nn.Linear(hidden, hidden)
        self.value = nn.Linear(hidden, hidden)
        self.output = nn.Linear(hidden, hidden)

    def forward(self, x_TD: Tensor, layout: Layout, adapter: LayerAdapter) -> Tensor:
        return adapter.linear("attention_output", self.output, self.mix(x_TD, layout, adapter), layout)

    @fusible
    def mix(self, x_TD: Tensor, layout: Layout, adapter: LayerAdapter) -> Tensor:
        """The concatenated outputs of the heads."""
        q_THd, k_THd, v_THd = self.queries_keys_values(x_TD, layout, adapter)
        base = partial(attend, dropout=self.dropout if self.training else 0.0)
        for bias in self.bias:
            base = partial(attend_with_bias, bias=bias.scores, **base.keywords)
        return adapter.attend(base, q_THd, k_THd, v_THd, layout).flatten(1)

    def queries_keys_values(self, x_TD: Tensor, layout: Layout, adapter: LayerAdapter) -> tuple[Tensor, Tensor, Tensor]:
        q_TD = adapter.linear("query", self.query, x_TD, layout)
        k_TD = adapter.linear("key", self.key, x_TD, layout)
        v_TD = adapter.linear("value", self.value, x_TD, layout)
        q_THd, k_THd, v_THd = (t.unflatten(-1, (self.heads, -1)) for t in (q_TD, k_TD, v_TD))
        return q_THd, k_THd, v_THd


class Layer(nn.Module):
    """a = LN1(h + Drop(SelfAttention(h))); out = LN2(a + Drop(FFN(a)))."""

    def __init__(self, shape: BertShape) -> None:
        super().__init__()
        self.attention = Attention(shape.hidden, shape.heads, shape.attention_dropout)
        self.attention_norm = nn.LayerNorm(shape.hidden, eps=shape.norm_eps)
        self.up = nn.Linear(shape.hidden, shape.ffn)
        self.down = nn.Linear(shape.ffn, shape.hidden)
        self.ffn_norm = nn.LayerNorm(shape.hidden, eps=shape.norm_eps)
        self.activation = ACTIVATIONS[shape.activation]
        self.dropout = Dropout(shape.dropout)

    def forward(self, h_TD: Tensor, layout: Layout, adapter: LayerAdapter) -> Tensor:
        y_TD = adapter.sublayer("attention", self.dropout(self.attention(h_TD, layout, adapter)), layout)
        a_TD = adapter.norm("attention", self.attention_norm, h_TD + y_TD, layout)
        up_TF = self.activation(adapter.linear("up", self.up, a_TD, layout))
        y_TD = adapter.sublayer("ffn", self.dropout(adapter.linear("down", self.down, up_TF, layout)), layout)
        branch_TD = adapter.parallel(h_TD, layout)
        total_TD = a_TD + y_TD if branch_TD is None else a_TD + y_TD + branch_TD
        return adapter.output(adapter.norm("ffn", self.ffn_norm, total_TD, layout), layout)


class Bert(Encoder):
    """BERT and its variations."""

    shape: BertShape

    def __init__(self, shape: BertShape) -> None:
        super().__init__()
        self.shape = shape
        size = shape.embedding_size
        self.words = nn.Embedding(shape.vocabulary, size)
        self.positions = nn.Embedding(shape.positions, size)
        self.segments = nn.Embedding(shape.segments, size) if shape.segments else None
        self.norm = nn.LayerNorm(size, eps=shape.norm_eps)
        self.dropout = Dropout(shape.dropout)
        self.project = nn.Linear(size, shape.hidden) if size != shape.hidden else None
        self.relative_bias = RelativeBias(shape.heads) if shape.relative_positions else None
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.pooler = nn.Linear(shape.hidden, shape.hidden)
        self.apply(self.initialize)
        if self.relative_bias is not None:
            for index in range(shape.layers):
                self.layer(index).attention.bias = (self.relative_bias,)

    def layer(self, index: int) -> Layer:
        layer = self.layers[index]
        assert isinstance(layer, Layer)
        return layer

    def sum_embeddings(self, words: Tensor, segment_ids: Tensor, position_ids: Tensor) -> Tensor:
        """Word embeddings plus those of segments and positions, before the norm."""
        # The order of transformers' BertModel, for the same rounding.
        if self.segments is not None:
            words = words + self.segments(self.segment_rows(segment_ids))
        summed: Tensor = words + self.positions(position_ids)
        return summed

    def segment_rows(self, segment_ids: Tensor) -> Tensor:
        """The rows of the table of segments: with a single row, that row for both texts of a pair."""
        return torch.zeros_like(segment_ids) if self.shape.segments < 2 else segment_ids

    @fusible
    def embed(self, stream: Stream, adapter: Adapter, words_TD: Tensor | None = None) -> Tensor:
        if words_TD is None:
            words_TD = self.words(stream.token_ids_T)
        sum_TD = self.sum_embeddings(words_TD, stream.segment_ids_T, stream.position_ids_T)
        normed_TD: Tensor = self.dropout(adapter.embedding.norm("embedding", self.norm, sum_TD, stream.layout))
        return normed_TD if self.project is None else self.project(normed_TD)

    @fusible
    def states(self, h_TD: Tensor, layout: Layout, adapter: Adapter, start: int = 0) -> Iterator[Tensor]:
        for index in range(start, len(self.layers)):
            h_TD = self.layers[index](h_TD, layout, adapter.layer(index))
            yield h_TD

    @fusible
    def encode(self, stream: Stream, adapter: Adapter, words_TD: Tensor | None = None) -> Tensor:
        return super().encode(stream, adapter, words_TD)

    def queries_keys_values(
        self, layer: int, h_TD: Tensor, layout: Layout, adapter: LayerAdapter
    ) -> tuple[Tensor, Tensor, Tensor]:
        return self.layer(layer).attention.queries_keys_values(h_TD, layout, adapter)

    def score_bias(self, layer: int) -> ScoreBias | None:
        return None if self.relative_bias is None else self.relative_bias.scores

    def linear(self, layer: int, site: str) -> nn.Linear:
        own = self.layer(layer)
        attention = own.attention
        sites = {"query": attention.query, "key": attention.key, "value": attention.value}
        return {**sites, "attention_output": attention.output, "up": own.up, "down": own.down}[site]

    def layer_norm(self, layer: int, site: str) -> nn.LayerNorm:
        own = self.layer(layer)
        return {"attention": own.attention_norm, "ffn": own.ffn_norm}[site]

    def embedding_modules(self) -> Mapping[str, nn.Module]:
        names = ("words", "positions", "segments", "norm", "project", "relative_bias")
        return {name: module for name in names if (module := getattr(self, name)) is not None}

    def used_in_all_layers(self) -> list[nn.Parameter]:
        return [] if self.relative_bias is None else list(self.relative_bias.parameters())


def bert_parameters(shape: BertShape) -> dict[str, tuple[int, ...]]:
    """The shapes of a Bert's parameters by name, without creating a Bert."""
    hidden, ffn, size = shape.hidden, shape.ffn, shape.embedding_size
    shapes: dict[str, tuple[int, ...]] = {"words.weight": (shape.vocabulary, size)}
    shapes["positions.weight"] = (shape.positions, size)
    if shape.segments:
        shapes["segments.weight"] = (shape.segments, size)
    if shape.relative_positions:
        shapes["relative_bias.weight"] = (RelativeBias.BUCKETS, shape.heads)
    maps: dict[str, tuple[int, ...]] = {"norm": (size,)} | ({"project": (hidden, size)} if size != hidden else {})
    attention = dict.fromkeys(("query", "key", "value", "output"), (hidden, hidden))
    of_layer: dict[str, tuple[int, ...]] = {f"attention.{name}": sizes for name, sizes in attention.items()}
    of_layer |= {"attention_norm": (hidden,), "up": (ffn, hidden), "down": (hidden, ffn), "ffn_norm": (hidden,)}
    for index in range(shape.layers):
        maps |= {f"layers.{index}.{name}": sizes for name, sizes in of_layer.items()}
    for name, sizes in (maps | {"pooler": (hidden, hidden)}).items():
        shapes |= {f"{name}.weight": sizes, f"{name}.bias": sizes[:1]}
    return shapes
