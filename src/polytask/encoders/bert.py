"""BERT on packed streams: embeddings, post-norm layers, pooler (Devlin et al. 2019).

Every linear map, norm and activation works on [T, D] without padding. Task-specific parts enter through the adapter's
slots and are never part of the encoder: its parameter names do not depend on the adapter.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import torch.nn.functional as F
from torch import Tensor, nn

from polytask.adapters.base import Adapter, LayerAdapter
from polytask.encoders.attention import attend
from polytask.fused_forms import fusible
from polytask.settings import Bounds, Rate, Size
from polytask.stream import Layout, Stream

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_new": lambda x: F.gelu(x, approximate="tanh"),
    "gelu_pytorch_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
    "swish": F.silu,
}


@dataclass(frozen=True)
class BertShape:
    """The sizes and rates of a BERT."""

    layers: Annotated[int, Bounds(1, 1000)] = 12
    hidden: Size = 768
    heads: Size = 12
    ffn: Annotated[int, Bounds(1, 2**20)] = 3072
    vocabulary: Annotated[int, Bounds(1, 10**7)] = 30522
    positions: Annotated[int, Bounds(1, 10**6)] = 512
    segments: Size = 2
    norm_eps: Annotated[float, Bounds(0, 1, "()")] = 1e-12
    activation: str = "gelu"
    dropout: Rate = 0.1
    attention_dropout: Rate = 0.1
    initializer_range: Annotated[float, Bounds(0, 1, "(]")] = 0.02


class Dropout(nn.Dropout):
    """torch's dropout, for which a fused form may draw the masks in another way."""

    @fusible
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)


class Attention(nn.Module):
    """Multi-head self-attention with its output map; the layer adds the residual."""

    def __init__(self, hidden: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.query = nn.Linear(hidden, hidden)
        self.key = nn.Linear(hidden, hidden)
        self.value = nn.Linear(hidden, hidden)
        self.output = nn.Linear(hidden, hidden)

    def forward(self, x_TD: Tensor, layout: Layout, adapter: LayerAdapter) -> Tensor:
        return adapter.linear("attention_output", self.output, self.mix(x_TD, layout, adapter), layout)

    @fusible
    def mix(self, x_TD: Tensor, layout: Layout, adapter: LayerAdapter) -> Tensor:
        """The concatenated outputs of the heads."""
        q_TD = adapter.linear("query", self.query, x_TD, layout)
        k_TD = adapter.linear("key", self.key, x_TD, layout)
        v_TD = adapter.linear("value", self.value, x_TD, layout)
        q_THd, k_THd, v_THd = (t.unflatten(-1, (self.heads, -1)) for t in (q_TD, k_TD, v_TD))
        base = partial(attend, dropout=self.dropout if self.training else 0.0)
        return adapter.attend(base, q_THd, k_THd, v_THd, layout).flatten(1)


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


class Bert(nn.Module):
    """The shared encoder: maps a stream of tokens to one hidden state per token."""

    def __init__(self, shape: BertShape) -> None:
        super().__init__()
        self.shape = shape
        self.words = nn.Embedding(shape.vocabulary, shape.hidden)
        self.positions = nn.Embedding(shape.positions, shape.hidden)
        self.segments = nn.Embedding(shape.segments, shape.hidden)
        self.norm = nn.LayerNorm(shape.hidden, eps=shape.norm_eps)
        self.dropout = Dropout(shape.dropout)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.pooler = nn.Linear(shape.hidden, shape.hidden)
        self.apply(self._initialize)

    def _initialize(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=self.shape.initializer_range)
        if isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)

    @fusible
    def embed(self, stream: Stream, adapter: Adapter, words_TD: Tensor | None = None) -> Tensor:
        """The input of the first layer. `words_TD` replaces the word embeddings (a regularizer may perturb them)."""
        if words_TD is None:
            words_TD = self.words(stream.token_ids_T)
        # The order of transformers' BertModel, for the same rounding.
        sum_TD = words_TD + self.segments(stream.segment_ids_T) + self.positions(stream.position_ids_T)
        normed_TD: Tensor = self.dropout(adapter.embedding.norm("embedding", self.norm, sum_TD, stream.layout))
        return normed_TD

    @fusible
    def states(self, h_TD: Tensor, layout: Layout, adapter: Adapter, start: int = 0) -> Iterator[Tensor]:
        """The output of each layer from `start` on, given the input of layer `start`."""
        for index in range(start, len(self.layers)):
            h_TD = self.layers[index](h_TD, layout, adapter.layer(index))
            yield h_TD

    @fusible
    def encode(self, stream: Stream, adapter: Adapter, words_TD: Tensor | None = None) -> Tensor:
        """The output of the last layer."""
        h_TD = self.embed(stream, adapter, words_TD)
        for state_TD in self.states(h_TD, stream.layout, adapter):
            h_TD = state_TD
        return h_TD

    def linear(self, layer: int, site: str) -> nn.Linear:
        """The linear map at this site of a layer."""
        own = self.layers[layer]
        assert isinstance(own, Layer)
        attention = own.attention
        sites = {"query": attention.query, "key": attention.key, "value": attention.value}
        return {**sites, "attention_output": attention.output, "up": own.up, "down": own.down}[site]

    def layer_norm(self, layer: int, site: str) -> nn.LayerNorm:
        """The norm at this site of a layer."""
        own = self.layers[layer]
        assert isinstance(own, Layer)
        return {"attention": own.attention_norm, "ffn": own.ffn_norm}[site]

    def pool(self, first_SD: Tensor) -> Tensor:
        """tanh(W h + b) of first-token states."""
        pooled_SD: Tensor = self.pooler(first_SD)
        return pooled_SD.tanh()
