"""ModernBERT on packed streams: pre-norm, rotary positions, GeGLU, local and global attention (Warner et al. 2024).

    a = h + Wo Attention(LN1(h));  out = a + W_down (gelu(u) * g) with [u; g] = W_up LN2(a)

No map and no norm has a bias. The first layer has no LN1, because the embeddings are normed already; the last layer's
output goes through a final norm. Layers 0, n, 2n ... attend to the whole sequence, the others to the tokens at most
half a window away, with another rotary base.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar

import torch
from torch import Tensor, nn

from polytask.adapters.base import Adapter, AffineNorm, LayerAdapter, per_task, task_rows
from polytask.encoders.attention import ScoreBias, attend, attend_with_bias
from polytask.encoders.base import ACTIVATIONS, Dropout, Encoder, EncoderShape
from polytask.settings import Bounds, Positive, Rate
from polytask.stream import Layout, Stream


@dataclass(frozen=True)
class ModernBertShape(EncoderShape):
    """The sizes and rates of a ModernBERT."""

    pre_norm: ClassVar[bool] = True

    kind: str = "modernbert"
    layers: Annotated[int, Bounds(1, 1000)] = 22
    ffn: Annotated[int, Bounds(1, 2**20)] = 1152
    vocabulary: Annotated[int, Bounds(1, 10**7)] = 50368
    positions: Annotated[int, Bounds(1, 10**6)] = 8192
    norm_eps: Annotated[float, Bounds(0, 1, "()")] = 1e-5
    dropout: Rate = 0.0
    """Inside the feed-forward part."""
    attention_dropout: Rate = 0.0
    """Of attention weights, and of attention's output."""
    embedding_dropout: Rate = 0.0
    global_every: Annotated[int, Bounds(1, 1000)] = 3
    """Every n-th layer, from the first on, has global attention."""
    window: Annotated[int, Bounds(2, 10**6)] = 128
    """Local attention reaches half of this to each side, inclusive."""
    global_theta: Positive = 160_000.0
    local_theta: Positive = 10_000.0

    @property
    def up_size(self) -> int:
        return 2 * self.ffn

    @property
    def plain_definition(self) -> str | None:
        return "its layers (pre-norm, rotary positions, local attention) have no kernels"

    def is_global(self, layer: int) -> bool:
        return layer % self.global_every == 0


def rotate(x_THd: Tensor, positions_T: Tensor, theta: float) -> Tensor:
    """Rotates each pair (x_i, x_{i + d/2}) of a head by the angle `position * theta^(-2i/d)`."""
    size = x_THd.shape[-1]
    powers = torch.arange(0, size, 2, dtype=torch.float, device=x_THd.device) / size
    angles_T1h = positions_T[:, None, None].float() * (1.0 / theta**powers)
    cos_T1h, sin_T1h = angles_T1h.cos(), angles_T1h.sin()
    one_THh, two_THh = x_THd.float().chunk(2, dim=-1)
    turned = torch.cat((one_THh * cos_T1h - two_THh * sin_T1h, two_THh * cos_T1h + one_THh * sin_T1h), dim=-1)
    return turned.to(x_THd.dtype)


class Window:
    """The score bias of local attention: -inf for keys that are more than `reach` tokens away."""

    def __init__(self, reach: int, like: Tensor) -> None:
        self.reach, self.like = reach, like

    def __call__(self, length: int, prefix: int) -> Tensor:
        positions_L = torch.arange(length, device=self.like.device)
        hidden_LL = (positions_L - positions_L[:, None]).abs() > self.reach
        hidden_LL &= positions_L >= prefix
        return torch.zeros(1, length, length, device=self.like.device).masked_fill(hidden_LL, -torch.inf)


class RotaryAttention(nn.Module):
    """Multi-head self-attention with rotary positions, over the whole sequence or a window."""

    def __init__(self, shape: ModernBertShape, layer: int) -> None:
        super().__init__()
        hidden = shape.hidden
        self.heads, self.dropout = shape.heads, shape.attention_dropout
        self.theta = shape.global_theta if shape.is_global(layer) else shape.local_theta
        self.reach = None if shape.is_global(layer) else shape.window // 2
        self.query = nn.Linear(hidden, hidden, bias=False)
        self.key = nn.Linear(hidden, hidden, bias=False)
        self.value = nn.Linear(hidden, hidden, bias=False)
        self.output = nn.Linear(hidden, hidden, bias=False)

    def forward(self, x_TD: Tensor, layout: Layout, adapter: LayerAdapter) -> Tensor:
        q_THd, k_THd, v_THd = self.queries_keys_values(x_TD, layout, adapter)
        dropout = self.dropout if self.training else 0.0
        bias = self.score_bias()
        base = partial(attend, dropout=dropout)
        if bias is not None:
            base = partial(attend_with_bias, bias=bias, dropout=dropout)
        mixed_TD = adapter.attend(base, q_THd, k_THd, v_THd, layout).flatten(1)
        return adapter.linear("attention_output", self.output, mixed_TD, layout)

    def queries_keys_values(self, x_TD: Tensor, layout: Layout, adapter: LayerAdapter) -> tuple[Tensor, Tensor, Tensor]:
        q_TD = adapter.linear("query", self.query, x_TD, layout)
        k_TD = adapter.linear("key", self.key, x_TD, layout)
        v_TD = adapter.linear("value", self.value, x_TD, layout)
        q_THd, k_THd, v_THd = (t.unflatten(-1, (self.heads, -1)) for t in (q_TD, k_TD, v_TD))
        positions_T = layout.positions(len(x_TD))
        return rotate(q_THd, positions_T, self.theta), rotate(k_THd, positions_T, self.theta), v_THd

    def score_bias(self) -> ScoreBias | None:
        return None if self.reach is None else Window(self.reach, self.query.weight)


class Unnormed(nn.Module):
    """The place of the norm that the first layer does not have: scale 1 and shift 0, which an adapter may change."""

    weight: Tensor
    bias: Tensor

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.register_buffer("weight", torch.ones(hidden), persistent=False)
        self.register_buffer("bias", torch.zeros(hidden), persistent=False)

    def forward(self, x_TD: Tensor, layout: Layout, adapter: LayerAdapter) -> Tensor:
        vectors = {k: adapter.affine("attention", self.weight, self.bias, k) for k, _ in task_rows(layout)}
        if all(gamma_D is self.weight and beta_D is self.bias for gamma_D, beta_D in vectors.values()):
            return x_TD
        return per_task(x_TD, layout, lambda k, rows_TD: rows_TD * vectors[k][0] + vectors[k][1])


class ModernLayer(nn.Module):
    """a = h + Drop(Attention(LN1(h))); out = a + W_down Drop(GeGLU(W_up LN2(a)))."""

    def __init__(self, shape: ModernBertShape, index: int) -> None:
        super().__init__()
        hidden = shape.hidden
        norm = partial(nn.LayerNorm, hidden, eps=shape.norm_eps, bias=False)
        self.attention_norm = norm() if index else Unnormed(hidden)
        self.attention = RotaryAttention(shape, index)
        self.attention_dropout = Dropout(shape.attention_dropout)
        self.ffn_norm = norm()
        self.up = nn.Linear(hidden, 2 * shape.ffn, bias=False)
        self.down = nn.Linear(shape.ffn, hidden, bias=False)
        self.activation = ACTIVATIONS[shape.activation]
        self.dropout = Dropout(shape.dropout)
        # Part of the last layer, so that the output of each layer is what the next layer or a head reads.
        self.final_norm = norm() if index == shape.layers - 1 else None

    def forward(self, h_TD: Tensor, layout: Layout, adapter: LayerAdapter) -> Tensor:
        x_TD = self.attention_input(h_TD, layout, adapter)
        y_TD = self.attention_dropout(self.attention(x_TD, layout, adapter))
        a_TD = h_TD + adapter.sublayer("attention", y_TD, layout)
        normed_TD = adapter.norm("ffn", self.ffn_norm, a_TD, layout)
        value_TF, gate_TF = adapter.linear("up", self.up, normed_TD, layout).chunk(2, dim=-1)
        inner_TF = self.dropout(self.activation(value_TF) * gate_TF)
        y_TD = adapter.sublayer("ffn", adapter.linear("down", self.down, inner_TF, layout), layout)
        branch_TD = adapter.parallel(x_TD, layout)
        out_TD = adapter.output(a_TD + y_TD if branch_TD is None else a_TD + y_TD + branch_TD, layout)
        return out_TD if self.final_norm is None else self.final_norm(out_TD)

    def attention_input(self, h_TD: Tensor, layout: Layout, adapter: LayerAdapter) -> Tensor:
        if isinstance(self.attention_norm, Unnormed):
            return self.attention_norm.forward(h_TD, layout, adapter)
        return adapter.norm("attention", self.attention_norm, h_TD, layout)


class ModernBert(Encoder):
    """ModernBERT. Its pooler is no part of the published model: heads with `pooling: pooler` train it."""

    shape: ModernBertShape

    def __init__(self, shape: ModernBertShape) -> None:
        super().__init__()
        self.shape = shape
        self.words = nn.Embedding(shape.vocabulary, shape.hidden)
        self.norm = nn.LayerNorm(shape.hidden, eps=shape.norm_eps, bias=False)
        self.dropout = Dropout(shape.embedding_dropout)
        self.layers = nn.ModuleList(ModernLayer(shape, index) for index in range(shape.layers))
        self.pooler = nn.Linear(shape.hidden, shape.hidden)
        self.apply(self.initialize)

    def layer(self, index: int) -> ModernLayer:
        layer = self.layers[index]
        assert isinstance(layer, ModernLayer)
        return layer

    def embed(self, stream: Stream, adapter: Adapter, words_TD: Tensor | None = None) -> Tensor:
        if words_TD is None:
            words_TD = self.words(stream.token_ids_T)
        h_TD: Tensor = self.dropout(adapter.embedding.norm("embedding", self.norm, words_TD, stream.layout))
        return h_TD

    def states(self, h_TD: Tensor, layout: Layout, adapter: Adapter, start: int = 0) -> Iterator[Tensor]:
        for index in range(start, len(self.layers)):
            h_TD = self.layers[index](h_TD, layout, adapter.layer(index))
            yield h_TD

    def queries_keys_values(
        self, layer: int, h_TD: Tensor, layout: Layout, adapter: LayerAdapter
    ) -> tuple[Tensor, Tensor, Tensor]:
        own = self.layer(layer)
        return own.attention.queries_keys_values(own.attention_input(h_TD, layout, adapter), layout, adapter)

    def score_bias(self, layer: int) -> ScoreBias | None:
        return self.layer(layer).attention.score_bias()

    def linear(self, layer: int, site: str) -> nn.Linear:
        own = self.layer(layer)
        attention = own.attention
        sites = {"query": attention.query, "key": attention.key, "value": attention.value}
        return {**sites, "attention_output": attention.output, "up": own.up, "down": own.down}[site]

    def layer_norm(self, layer: int, site: str) -> AffineNorm:
        own = self.layer(layer)
        return own.ffn_norm if site == "ffn" else own.attention_norm

    def embedding_modules(self) -> Mapping[str, nn.Module]:
        return {"words": self.words, "norm": self.norm}


def modern_bert_parameters(shape: ModernBertShape) -> dict[str, tuple[int, ...]]:
    """The shapes of a ModernBert's parameters by name, without creating a ModernBert."""
    hidden, last = shape.hidden, shape.layers - 1
    weights: dict[str, tuple[int, ...]] = {"words": (shape.vocabulary, hidden), "norm": (hidden,)}
    attention = dict.fromkeys(("query", "key", "value", "output"), (hidden, hidden))
    for index in range(shape.layers):
        own: dict[str, tuple[int, ...]] = {f"attention.{name}": sizes for name, sizes in attention.items()}
        own |= {"ffn_norm": (hidden,), "up": (2 * shape.ffn, hidden), "down": (hidden, shape.ffn)}
        own |= {"attention_norm": (hidden,)} if index else {}
        own |= {"final_norm": (hidden,)} if index == last else {}
        weights |= {f"layers.{index}.{name}": sizes for name, sizes in own.items()}
    shapes = {f"{name}.weight": sizes for name, sizes in weights.items()}
    return {**shapes, "pooler.weight": (hidden, hidden), "pooler.bias": (hidden,)}
