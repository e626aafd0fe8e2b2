"""Bottleneck adapters inside every layer."""

from functools import partial
from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

from polytask.adapters.base import Adapter, AdapterContext, LayerAdapter, Layers, SublayerSite, on_layers
from polytask.adapters.per_task import TaskLinear
from polytask.settings import Positive, Size
from polytask.stream import Layout

Position = Literal["after_ffn", "after_norm", "both_sublayers"]


def truncated_normal(weight: Tensor, deviation: float) -> None:
    """Truncated normal with this standard deviation, cut at two deviations."""
    nn.init.trunc_normal_(weight, std=deviation, a=-2 * deviation, b=2 * deviation)


class Bottleneck(nn.Module):
    """`x + W_D gelu(W_E x + b_E) + b_D`."""

    def __init__(self, context: AdapterContext, size: int, deviation: float) -> None:
        super().__init__()
        start = partial(truncated_normal, deviation=deviation)
        self.down = TaskLinear(context.tasks, context.hidden, size, start)
        self.up = TaskLinear(context.tasks, size, context.hidden, start)

    def forward(self, x_TD: Tensor, layout: Layout) -> Tensor:
        change_TD: Tensor = self.up(F.gelu(self.down(x_TD, layout)), layout)
        return x_TD + change_TD


class HoulsbyLayer(LayerAdapter):
    def __init__(self, context: AdapterContext, size: int, position: Position, deviation: float) -> None:
        super().__init__()
        self.position = position
        self.ffn = Bottleneck(context, size, deviation)
        self.attention = Bottleneck(context, size, deviation) if position == "both_sublayers" else None

    def bottleneck(self, place: Literal["attention", "ffn", "layer"]) -> Bottleneck | None:
        """The bottleneck on the output of attention, of the feed-forward part, or of the whole layer."""
        if place == "attention":
            return self.attention
        return self.ffn if (place == "layer") == (self.position == "after_norm") else None

    def sublayer(self, site: SublayerSite, y_TD: Tensor, layout: Layout) -> Tensor:
        bottleneck = self.bottleneck(site)
        return y_TD if bottleneck is None else bottleneck(y_TD, layout)

    def output(self, h_TD: Tensor, layout: Layout) -> Tensor:
        bottleneck = self.bottleneck("layer")
        return h_TD if bottleneck is None else bottleneck(h_TD, layout)


class Houlsby(Adapter):
    """Bottleneck adapters: `x + W_D gelu(W_E x + b_E) + b_D` of each task, in every layer.

    Position: both_sublayers (the paper: on the outputs of attention and of the feed-forward part, before the residual
    sum), after_ffn (only on the latter), or after_norm (on the layer's output). They start near the identity but not
    exactly at it: truncated normal weights with a standard deviation of `deviation`, zero biases. Designed for frozen
    encoders (`train.parts: adapters`).
    Paper: Houlsby et al., "Parameter-Efficient Transfer Learning for NLP", 2019 (size 64).
    """

    plain_at_start = False

    def __init__(
        self,
        context: AdapterContext,
        *,
        size: Size = 64,
        position: Position = "both_sublayers",
        deviation: Positive = 1e-3,
        layers: Layers = None,
    ) -> None:
        on = on_layers(context, layers, lambda: HoulsbyLayer(context, size, position, deviation))
        super().__init__(LayerAdapter(), on, context.tasks)
