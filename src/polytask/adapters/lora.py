"""Low-rank changes of the encoder's own linear maps."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from polytask.adapters.base import Adapter, AdapterContext, LayerAdapter, LinearSite, chosen_layers
from polytask.adapters.grouped import TaskLinear
from polytask.stream import Layout
from polytask.types import Positive, Size


def spread(weight: Tensor) -> None:
    nn.init.kaiming_uniform_(weight, a=math.sqrt(5))


class LoraLayer(LayerAdapter):
    def __init__(self, context: AdapterContext, sites: tuple[LinearSite, ...], rank: int, scale: float) -> None:
        super().__init__()
        self.scale = scale
        wide = {"down": context.ffn}
        out = {"up": context.ffn}
        self.down = nn.ModuleDict(
            {s: TaskLinear(context.tasks, wide.get(s, context.hidden), rank, spread, bias=False) for s in sites}
        )
        self.up = nn.ModuleDict(
            {s: TaskLinear(context.tasks, rank, out.get(s, context.hidden), nn.init.zeros_, bias=False) for s in sites}
        )

    def linear(self, site: LinearSite, base: nn.Module, x_TD: Tensor, layout: Layout) -> Tensor:
        y_TD = super().linear(site, base, x_TD, layout)
        if site in self.down:
            y_TD = y_TD + self.scale * self.up[site](self.down[site](x_TD, layout), layout)
        return y_TD

    def plain_linear(self, site: LinearSite) -> bool:
        return site not in self.down

    def change(self, site: str, k: int) -> Tensor:
        """What task k adds to the weight of a linear map: `scale B A`."""
        up, down = self.up[site], self.down[site]
        assert isinstance(up, TaskLinear)
        assert isinstance(down, TaskLinear)
        product: Tensor = self.scale * up.weights[k] @ down.weights[k]
        return product


class Lora(Adapter):
    """LoRA: `W x + (alpha/rank) B_t A_t x` at chosen linear maps, B_t = 0 at the start.

    Sites: query, key, value, attention_output, up, down. A starts as torch's linear layers do. No dropout on x.
    Paper: Hu et al., "LoRA", 2021 (query and value).
    """

    def __init__(
        self,
        context: AdapterContext,
        *,
        rank: Size = 8,
        alpha: Positive = 16.0,
        sites: tuple[LinearSite, ...] = ("query", "value"),
        layers: int | None = None,
    ) -> None:
        super().__init__(
            LayerAdapter(),
            (
                LoraLayer(context, sites, rank, alpha / rank) if here else LayerAdapter()
                for here in chosen_layers(context, layers)
            ),
            context.tasks,
        )

    @torch.no_grad()
    def merge(self, k: int, linear_of: Callable[[int, str], nn.Linear]) -> None:
        """Adds task k's changes to the encoder's own weights, for a model of that task alone."""
        for index in range(len(self.layers)):
            layer = self.layer(index)
            if isinstance(layer, LoraLayer):
                for site in layer.down:
                    linear_of(index, site).weight += layer.change(site, k)
