"""Keys, values and inner activations scaled by each task."""

from torch import Tensor, nn

from polytask.adapters.base import Adapter, AdapterContext, LayerAdapter, Layers, Linear, LinearSite, on_layers
from polytask.adapters.per_task import TaskVectors
from polytask.stream import Layout


class Ia3Layer(LayerAdapter):
    def __init__(self, context: AdapterContext) -> None:
        super().__init__()
        sizes = {"key": context.hidden, "value": context.hidden, "down": context.ffn}
        self.scales = TaskVectors(context.tasks, sizes, nn.init.ones_)

    def linear(self, site: LinearSite, base: Linear, x_TD: Tensor, layout: Layout) -> Tensor:
        if site == "down":  # whose input is the feed-forward part's inner activation
            return base(x_TD * self.scales["down"](x_TD, layout))
        y_TD = base(x_TD)
        return y_TD * self.scales[site](y_TD, layout) if site in self.scales else y_TD


class Ia3(Adapter):
    """IA3: `softmax(q (l_k * k)' / sqrt(d)) (l_v * v)` and `W_2 (l_ff * gelu(W_1 x + b_1)) + b_2` in every layer.

    l_k, l_v and l_ff belong to the task and the layer, are ones at the start, and scale elementwise. Designed for
    frozen encoders (`train.parts: adapters`).
    Paper: Liu et al., "Few-Shot Parameter-Efficient Fine-Tuning is Better and Cheaper than In-Context Learning", 2022.
    """

    def __init__(self, context: AdapterContext, *, layers: Layers = None) -> None:
        super().__init__(LayerAdapter(), on_layers(context, layers, lambda: Ia3Layer(context)), context.tasks)
