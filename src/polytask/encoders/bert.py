"""BERT on packed streams: embeddings, post-norm layers, pooler (Devlin et al. 2019).

Every linear map, norm and activation works on [T, D] with no padding. Task-specific parts come in through the adapter's
slots and are never part of the encoder: its parameter names never depend on the adapter. Knows no task and no file.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated

import torch.nn.functional as F
from torch import Tensor, nn

from polytask.adapters.base import Adapter, LayerAdapter, LinearSite
from polytask.encoders.attention import attend, attend_packed
from polytask.kernels.dropout import Dropout
from polytask.kernels.fused.layer import Hidden, fused_layer_fits, swift_embed, swift_states
from polytask.kernels.one_product import one_product
from polytask.stream import Layout, Stream
from polytask.types import Bounds, Rate, Size

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_new": lambda x: F.gelu(x, approximate="tanh"),
    "gelu_pytorch_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
    "swish": F.silu,
}


QKV: tuple[LinearSite, ...] = ("query", "key", "value")


@dataclass(frozen=True)
class BertShape:
    """The numbers that make a BERT."""

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


class Attention(nn.Module):
    """Multi-head self-attention with its output map; the residual sum is the layer's."""

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

    def mix(self, x_TD: Tensor, layout: Layout, adapter: LayerAdapter) -> Tensor:
        """The heads' outputs side by side."""
        dropout = self.dropout if self.training else 0.0
        if x_TD.is_cuda and all(map(adapter.plain_linear, QKV)):  # one large product is faster there than three
            maps = (self.query, self.key, self.value)
            qkv_T3D = one_product(x_TD, [m.weight for m in maps], [m.bias for m in maps])
            return attend_packed(qkv_T3D.unflatten(-1, (3, self.heads, -1)), layout, dropout).flatten(1)
        q_TD = adapter.linear("query", self.query, x_TD, layout)
        k_TD = adapter.linear("key", self.key, x_TD, layout)
        v_TD = adapter.linear("value", self.value, x_TD, layout)
        q_THd, k_THd, v_THd = (t.unflatten(-1, (self.heads, -1)) for t in (q_TD, k_TD, v_TD))
        return attend(q_THd, k_THd, v_THd, layout, dropout).flatten(1)


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
        return adapter.norm("ffn", self.ffn_norm, total_TD, layout)


class Bert(nn.Module):
    """The shared encoder: a stream of tokens in, one hidden state for each token out."""

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
        self.apply(self._start)

    def _start(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=self.shape.initializer_range)
        if isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)

    def embed(self, stream: Stream, adapter: Adapter, words_TD: Tensor | None = None) -> Tensor:
        """The first layer's input. `words_TD` stands in for the word vectors (a regularizer may perturb them)."""
        if words_TD is None:
            words_TD = self.words(stream.token_ids_T)
        # Summed in the order of transformers' BertModel, for the same rounding.
        sum_TD = words_TD + self.segments(stream.segment_ids_T) + self.positions(stream.position_ids_T)
        normed_TD: Tensor = self.dropout(adapter.embedding.norm("embedding", self.norm, sum_TD, stream.layout))
        return normed_TD

    def states(self, h_TD: Tensor | Hidden, layout: Layout, adapter: Adapter, start: int = 0) -> Iterator[Tensor]:
        """The output of each layer from `start` on, given that layer's input."""
        layout.made.clear()
        try:
            if isinstance(h_TD, Hidden) or fused_layer_fits(h_TD):
                yield from swift_states(self, h_TD, layout, adapter, start)
                return
            for index in range(start, len(self.layers)):
                state_TD: Tensor = self.layers[index](h_TD, layout, adapter.layer(index))
                yield state_TD
                h_TD = state_TD
        finally:
            layout.made.clear()

    def encode(self, stream: Stream, adapter: Adapter, words_TD: Tensor | None = None) -> Tensor:
        """The last layer's output."""
        swift = words_TD is None and fused_layer_fits(self.words.weight)
        h = (swift_embed(self, stream, adapter) if swift else None) or self.embed(stream, adapter, words_TD)
        for state_TD in self.states(h, stream.layout, adapter):
            h = state_TD
        return h if isinstance(h, Tensor) else h.full_TD

    def linear(self, layer: int, site: str) -> nn.Linear:
        """The linear map that an adapter sees at this site of a layer."""
        own = self.layers[layer]
        assert isinstance(own, Layer)
        attention = own.attention
        sites = {"query": attention.query, "key": attention.key, "value": attention.value}
        return {**sites, "attention_output": attention.output, "up": own.up, "down": own.down}[site]

    def layer_norm(self, layer: int, site: str) -> nn.LayerNorm:
        """The norm that an adapter sees at this site of a layer."""
        own = self.layers[layer]
        assert isinstance(own, Layer)
        return {"attention": own.attention_norm, "ffn": own.ffn_norm}[site]

    def pool(self, first_SD: Tensor) -> Tensor:
        """tanh(W h + b) of first-token states."""
        pooled_SD: Tensor = self.pooler(first_SD)
        return pooled_SD.tanh()
