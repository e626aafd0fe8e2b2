"""Bottleneck adapters inside every layer."""

from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

from polytask.adapters.base import Adapter, AdapterContext, LayerAdapter, SublayerSite, on_layers
from polytask.adapters.per_task import TaskLinear
from polytask.settings import Size
from polytask.stream import Layout

Position = Literal["after_ffn", "after_norm", "both_sublayers"]


def nearly_zero(weight: Tensor) -> None:
    """Truncated normal with a standard deviation of 1e-3, cut at two deviations."""
    nn.init.trunc_normal_(weight, std=1e-3, a=-2e-3, b=2e-3)


class Bottleneck(nn.Module):
    """`x + W_D gelu(W_E x + b_E) + b_D`."""

    def __init__(self, context: AdapterContext, size: int) -> None:
        super().__init__()
        self.down = TaskLinear(context.tasks, context.hidden, size, nearly_zero)
        self.up = TaskLinear(context.tasks, size, context.hidden, nearly_zero)

    def forward(self, x_TD: Tensor, layout: Layout) -> Tensor:
        change_TD: Tensor = self.up(F.gelu(self.down(x_TD, layout)), layout)
        return x_TD + change_TD


class HoulsbyLayer(LayerAdapter):
    def __init__(self, context: AdapterContext, size: int, position: Position) -> None:
        super().__init__()
        self.position = position
        self.ffn = Bottleneck(context, size)
        self.attention = Bottleneck(context, size) if position == "both_sublayers" else None

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
    exactly at it: truncated normal weights with a deviation of 1e-3, zero biases. Designed for frozen encoders
    (`train.parts: adapters`).
    Paper: Houlsby et al., "Parameter-Efficient Transfer Learning for NLP", 2019 (size 64).
    """

    plain_at_start = False

    def __init__(
        self,
        context: AdapterContext,
        *,
        size: Size = 64,
        position: Position = "both_sublayers",
        layers: int | None = None,
    ) -> None:
        on = on_layers(context, layers, lambda: HoulsbyLayer(context, size, position))
        super().__init__(LayerAdapter(), on, context.tasks)
