"""Low-rank changes of the encoder's own linear maps."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from polytask.adapters.base import Adapter, AdapterContext, LayerAdapter, Layers, Linear, LinearSite, on_layers
from polytask.adapters.per_task import TaskLinear
from polytask.settings import Positive, Size
from polytask.stream import Layout


def as_linear(weight: Tensor) -> None:
    """The first values of torch's linear layers."""
    nn.init.kaiming_uniform_(weight, a=math.sqrt(5))


class LoraLayer(LayerAdapter):
    def __init__(self, context: AdapterContext, sites: tuple[LinearSite, ...], rank: int, scale: float) -> None:
        super().__init__()
        self.scale = scale
        tasks, hidden, ffn = context.tasks, context.hidden, context.ffn
        inputs, outputs = {"down": ffn}, {"up": context.up_size}
        self.down = nn.ModuleDict(
            {s: TaskLinear(tasks, inputs.get(s, hidden), rank, as_linear, bias=False) for s in sites}
        )
        self.up = nn.ModuleDict(
            {s: TaskLinear(tasks, rank, outputs.get(s, hidden), nn.init.zeros_, bias=False) for s in sites}
        )

    def linear(self, site: LinearSite, base: Linear, x_TD: Tensor, layout: Layout) -> Tensor:
        y_TD = base(x_TD)
        if site in self.down:
            y_TD = y_TD + self.scale * self.up[site](self.down[site](x_TD, layout), layout)
        return y_TD

    def change(self, site: str, k: int) -> Tensor:
        """What task k adds to the weight of a linear map: `scale B A`."""
        up, down = self.up[site], self.down[site]
        assert isinstance(up, TaskLinear)
        assert isinstance(down, TaskLinear)
        change: Tensor = self.scale * up.weights[k] @ down.weights[k]
        return change


class Lora(Adapter):
    """LoRA: `W x + (alpha/rank) B_t A_t x` at chosen linear maps, B_t = 0 at the start.

    Sites: query, key, value, attention_output, up, down. A_t starts as torch's linear layers do. No dropout on x.
    Paper: Hu et al., "LoRA", 2021 (query and value).
    """

    def __init__(
        self,
        context: AdapterContext,
        *,
        rank: Size = 8,
        alpha: Positive = 16.0,
        sites: tuple[LinearSite, ...] = ("query", "value"),
        layers: Layers = None,
    ) -> None:
        on = on_layers(context, layers, lambda: LoraLayer(context, sites, rank, alpha / rank))
        super().__init__(LayerAdapter(), on, context.tasks)

    @torch.no_grad()
    def merge(self, k: int, linear_of: Callable[[int, str], nn.Linear]) -> None:
        """Adds task k's changes to the encoder's own weights, for a model of that task only."""
        for index in range(len(self.layers)):
            layer = self.layer(index)
            if isinstance(layer, LoraLayer):
                for site in layer.down:
                    linear_of(index, site).weight += layer.change(site, k)
