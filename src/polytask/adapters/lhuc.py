"""Hidden units turned up or down by each task."""

from torch import Tensor, nn

from polytask.adapters.base import Adapter, AdapterContext, LayerAdapter, NormSite, chosen_layers
from polytask.adapters.grouped import TaskVector, at_once, by_task
from polytask.stream import Layout


class LhucLayer(LayerAdapter):
    def __init__(self, context: AdapterContext) -> None:
        super().__init__()
        self.gate = TaskVector(context.tasks, context.hidden)

    def norm(self, site: NormSite, base: nn.Module, x_TD: Tensor, layout: Layout) -> Tensor:
        y_TD = super().norm(site, base, x_TD, layout)
        if site != "ffn":
            return y_TD
        if at_once(y_TD, layout):
            return y_TD * (2 * self.gate.over(layout).sigmoid())
        return by_task(y_TD, layout, lambda k, rows: rows * (2 * self.gate.vectors[k].sigmoid()))

    def norm_vectors(
        self, site: NormSite, scale_D: Tensor, shift_D: Tensor, layout: Layout
    ) -> tuple[Tensor, Tensor] | None:
        if site != "ffn":
            return scale_D, shift_D
        if layout.alone is None:
            return None
        gate_D = 2 * self.gate.vectors[layout.alone].sigmoid()
        return scale_D * gate_D, shift_D * gate_D


class Lhuc(Adapter):
    """Learning hidden unit contributions: each layer's output `h * 2 sigmoid(r_t)`, r_t = 0 at the start.

    Paper: Swietojanski & Renals, "Learning Hidden Unit Contributions", 2014.
    """

    def __init__(self, context: AdapterContext, *, layers: int | None = None) -> None:
        super().__init__(
            LayerAdapter(),
            (LhucLayer(context) if here else LayerAdapter() for here in chosen_layers(context, layers)),
            context.tasks,
        )
