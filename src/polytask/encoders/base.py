"""What every encoder is to the rest of polytask: its shape, its parts, and the way from tokens to hidden states."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from polytask.adapters.base import Adapter, AffineNorm, LayerAdapter
from polytask.encoders.attention import ScoreBias
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
class EncoderShape:
    """The sizes and rates that every encoder has."""

    pre_norm: ClassVar[bool] = False
    """Whether layers normalize their input instead of their output."""

    layers: Annotated[int, Bounds(1, 1000)] = 12
    hidden: Size = 768
    heads: Size = 12
    ffn: Annotated[int, Bounds(1, 2**20)] = 3072
    vocabulary: Annotated[int, Bounds(1, 10**7)] = 30522
    positions: Annotated[int, Bounds(1, 10**6)] = 512
    """The longest sequence."""
    norm_eps: Annotated[float, Bounds(0, 1, "()")] = 1e-12
    activation: str = "gelu"
    dropout: Rate = 0.1
    attention_dropout: Rate = 0.1
    initializer_range: Annotated[float, Bounds(0, 1, "(]")] = 0.02
    kind: str = "bert"
    """The architecture, by the name that Hugging Face's config.json has for it (`model_type`)."""

    @property
    def plain_definition(self) -> str | None:
        """Why the layers always run as they are defined: not fused, and not in captured steps; None if they do not."""
        return None

    @property
    def embedding_size(self) -> int:
        """The size of word embeddings."""
        return self.hidden

    @property
    def up_size(self) -> int:
        """The number of outputs of the first linear map of the feed-forward part."""
        return self.ffn


class Dropout(nn.Dropout):
    """torch's dropout, for which a fused form may draw the masks in another way."""

    @fusible
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)


class Encoder(nn.Module, ABC):
    """The shared encoder: maps a stream of tokens to one hidden state per token."""

    shape: EncoderShape
    words: nn.Embedding
    layers: nn.ModuleList
    pooler: nn.Linear

    def initialize(self, module: nn.Module) -> None:
        """Sets the first values of one module."""
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=self.shape.initializer_range)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    @abstractmethod
    def embed(self, stream: Stream, adapter: Adapter, words_TD: Tensor | None = None) -> Tensor:
        """The input of the first layer. `words_TD` replaces the word embeddings (a regularizer may perturb them)."""

    @abstractmethod
    def states(self, h_TD: Tensor, layout: Layout, adapter: Adapter, start: int = 0) -> Iterator[Tensor]:
        """The output of each layer from `start` on, given the input of layer `start`."""

    def encode(self, stream: Stream, adapter: Adapter, words_TD: Tensor | None = None) -> Tensor:
        """The output of the last layer."""
        h_TD = self.embed(stream, adapter, words_TD)
        for state_TD in self.states(h_TD, stream.layout, adapter):
            h_TD = state_TD
        return h_TD

    @abstractmethod
    def queries_keys_values(
        self, layer: int, h_TD: Tensor, layout: Layout, adapter: LayerAdapter
    ) -> tuple[Tensor, Tensor, Tensor]:
        """What the attention of a layer reads, each [T, heads, head size], given the layer's input."""

    @abstractmethod
    def score_bias(self, layer: int) -> ScoreBias | None:
        """What the attention of a layer adds to its scores."""

    @abstractmethod
    def linear(self, layer: int, site: str) -> nn.Linear:
        """The linear map at this site of a layer."""

    @abstractmethod
    def layer_norm(self, layer: int, site: str) -> AffineNorm:
        """The norm at this site of a layer."""

    @abstractmethod
    def embedding_modules(self) -> Mapping[str, nn.Module]:
        """The modules that belong to no layer, without the pooler."""

    def used_in_all_layers(self) -> list[nn.Parameter]:
        """The parameters of `embedding_modules` that layers read too."""
        return []

    def pool(self, first_SD: Tensor) -> Tensor:
        """tanh(W h + b) of first-token states."""
        pooled_SD: Tensor = self.pooler(first_SD)
        return pooled_SD.tanh()
