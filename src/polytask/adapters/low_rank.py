"""A narrow map of each task beside every layer."""

import torch.nn.functional as F
from torch import Tensor

from polytask.adapters.base import Adapter, AdapterContext, LayerAdapter, chosen_layers
from polytask.adapters.grouped import Projections
from polytask.stream import Layout
from polytask.types import Size


class LowRankLayer(LayerAdapter):
    """One layer's branch; the projections are those of all layers."""

    def __init__(self, projections: Projections, gelu: bool) -> None:
        super().__init__()
        self.projections = (projections,)  # a tuple: a module would put them into the state of every layer
        self.gelu = gelu

    def parallel(self, x_TD: Tensor, layout: Layout) -> Tensor:
        (projections,) = self.projections
        narrow_Ts = projections.down(x_TD, layout)
        y_TD: Tensor = projections.up(F.gelu(narrow_Ts) if self.gelu else narrow_Ts, layout)
        return y_TD


class LowRank(Adapter):
    """Low-rank layers: `LN2(a + FFN(a) + V_D g(V_E h))` with g the identity, or GELU; projections shared by all layers.

    PAL without its attention. V_D starts at zero, so the branch starts silent but learns.
    Paper: Stickland & Murray, "BERT and PALs", 2019 (size 100).
    """

    def __init__(
        self, context: AdapterContext, *, size: Size = 100, gelu: bool = False, layers: int | None = None
    ) -> None:
        projections = Projections(context.tasks, context.hidden, size)
        super().__init__(
            LayerAdapter(),
            (LowRankLayer(projections, gelu) if here else LayerAdapter() for here in chosen_layers(context, layers)),
            context.tasks,
        )
        self.projections = projections
