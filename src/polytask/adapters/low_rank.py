"""A low-rank map of each task, parallel to every layer."""

from types import MappingProxyType

import torch.nn.functional as F
from torch import Tensor, nn

from polytask.adapters.base import Adapter, AdapterContext, LayerAdapter, Layers, chosen_layers, on_layers
from polytask.adapters.per_task import Projections
from polytask.settings import Size
from polytask.stream import Layout


class LowRankLayer(LayerAdapter):
    """One layer's branch."""

    def __init__(self, projections: Projections, gelu: bool) -> None:
        super().__init__()
        # In a tuple, because layers may share it: as a submodule it would be in the state of every layer.
        self.projections = (projections,)
        self.gelu = gelu

    def parallel(self, x_TD: Tensor, layout: Layout) -> Tensor:
        (projections,) = self.projections
        narrow_Ts = projections.down(x_TD, layout)
        y_TD: Tensor = projections.up(F.gelu(narrow_Ts) if self.gelu else narrow_Ts, layout)
        return y_TD


class LowRank(Adapter):
    """Low-rank layers: `LN2(a + FFN(a) + V_D g(V_E h))` with h the layer's input and g the identity, or GELU.

    PAL without its attention. Each layer has its own V_E and V_D, as in the authors' code, which uses the GELU;
    `shared_projections: true` gives all layers of a task the same ones. V_D starts at zero, so the branch starts at
    zero but learns.
    Paper: Stickland & Murray, "BERT and PALs", 2019 (size 100).
    """

    earlier_options = MappingProxyType({"shared_projections": True})

    def __init__(
        self,
        context: AdapterContext,
        *,
        size: Size = 100,
        gelu: bool = False,
        shared_projections: bool = False,
        layers: Layers = None,
    ) -> None:
        count = sum(chosen_layers(context, layers))
        projections = [
            Projections(context.tasks, context.hidden, size) for _ in range(1 if shared_projections else count)
        ]
        of_layers = iter(projections * count if shared_projections else projections)
        on = on_layers(context, layers, lambda: LowRankLayer(next(of_layers), gelu))
        super().__init__(LayerAdapter(), on, context.tasks)
        # Saved models name shared projections without an index.
        self.projections = projections[0] if shared_projections else nn.ModuleList(projections)
