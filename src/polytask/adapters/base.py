"""The slots at which task-specific parts enter the trunk. The defaults are the identity: plain BERT.

A layer adapter sees the layout as an argument and keeps no notion of an "active" task, so one call serves a stream that
holds one task or many. The trunk knows this file and no concrete adapter.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from polytask.types import Layout

LinearSite = Literal["query", "key", "value", "attention_output", "up", "down"]
NormSite = Literal["embedding", "attention", "ffn"]
SublayerSite = Literal["attention", "ffn"]


@dataclass(frozen=True)
class AdapterContext:
    """What every adapter is given beside its options."""

    tasks: tuple[str, ...]
    """In the order of the layout's task ids."""
    layers: int
    hidden: int
    heads: int
    ffn: int
    dropout: float


class LayerAdapter(nn.Module):
    """What one layer of the trunk (or its embeddings) asks at each of its slots."""

    def linear(self, site: LinearSite, base: nn.Module, x_TD: Tensor, layout: Layout) -> Tensor:
        """In place of each of the layer's linear maps."""
        y_TD: Tensor = base(x_TD)
        return y_TD

    def norm(self, site: NormSite, base: nn.Module, x_TD: Tensor, layout: Layout) -> Tensor:
        """In place of each LayerNorm."""
        y_TD: Tensor = base(x_TD)
        return y_TD

    def sublayer(self, site: SublayerSite, y_TD: Tensor, layout: Layout) -> Tensor:
        """On the output of attention or of the feed-forward part, before the residual sum."""
        return y_TD

    def parallel(self, x_TD: Tensor, layout: Layout) -> Tensor | None:
        """A branch beside the whole layer, fed with the layer's input and added before its last LayerNorm."""
        return None


class Adapter(nn.Module):
    """The task-specific parts of a whole trunk: one layer adapter for the embeddings and one for each layer."""

    def __init__(self, embedding: LayerAdapter, layers: Iterable[LayerAdapter]) -> None:
        super().__init__()
        self.embedding = embedding
        self.layers = nn.ModuleList(layers)

    def layer(self, index: int) -> LayerAdapter:
        adapter = self.layers[index]
        assert isinstance(adapter, LayerAdapter)
        return adapter

    def task_parameters(self, task: str) -> Iterable[nn.Parameter]:
        """The parameters that belong to this task alone; the others are shared by all tasks."""
        return ()
