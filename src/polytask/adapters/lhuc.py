"""A gate of each task on every hidden unit."""

from torch import Tensor

from polytask.adapters.base import Adapter, AdapterContext, LayerAdapter, Layers, NormSite, on_layers
from polytask.adapters.per_task import TaskVector
from polytask.stream import Layout


class LhucLayer(LayerAdapter):
    def __init__(self, context: AdapterContext) -> None:
        super().__init__()
        self.gate = TaskVector(context.tasks, context.hidden)

    def affine(self, site: NormSite, gamma_D: Tensor, beta_D: Tensor, k: int) -> tuple[Tensor, Tensor]:
        # A layer's output is that of its last norm, so scaling the norm's vectors scales the output.
        if site != "ffn":
            return gamma_D, beta_D
        gate_D = 2 * self.gate.vectors[k].sigmoid()
        return gamma_D * gate_D, beta_D * gate_D


class LhucOutput(LayerAdapter):
    """The gate on the output itself, for layers that normalize their input: their output is a sum, not a norm's."""

    def __init__(self, context: AdapterContext) -> None:
        super().__init__()
        self.gate = TaskVector(context.tasks, context.hidden)

    def output(self, h_TD: Tensor, layout: Layout) -> Tensor:
        gate_TD: Tensor = self.gate(h_TD, layout)
        return h_TD * (2 * gate_TD.sigmoid())


class Lhuc(Adapter):
    """Learning hidden unit contributions: each layer's output becomes `h * 2 sigmoid(r_t)`, r_t = 0 at the start.

    Paper: Swietojanski & Renals, "Learning Hidden Unit Contributions", 2014.
    """

    def __init__(self, context: AdapterContext, *, layers: Layers = None) -> None:
        layer = LhucOutput if context.pre_norm else LhucLayer
        super().__init__(LayerAdapter(), on_layers(context, layers, lambda: layer(context)), context.tasks)
