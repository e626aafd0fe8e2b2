"""Projected attention layers: a small attention layer of each task, parallel to every layer."""

from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn

from polytask.adapters.base import Adapter, AdapterContext, LayerAdapter, Layers, chosen_layers, on_layers
from polytask.adapters.per_task import Projections, TaskLinear, normal
from polytask.settings import NonNegative, Size
from polytask.stream import Layout
from polytask.types import UserError


class PalLayer(LayerAdapter):
    """One layer's branch."""

    def __init__(
        self, context: AdapterContext, projections: Projections, heads: int, gelu: bool, attention_dropout: float
    ) -> None:
        super().__init__()
        self.attention = context.attend
        self.heads, self.gelu, self.attention_dropout = heads, gelu, attention_dropout
        # In a tuple, because layers may share it: as a submodule it would be in the state of every layer.
        self.projections = (projections,)
        self.query_key_value = TaskLinear(context.tasks, projections.size, 3 * projections.size, normal)

    def parallel(self, x_TD: Tensor, layout: Layout) -> Tensor:
        (projections,) = self.projections
        qkv_T3s = self.query_key_value(projections.down(x_TD, layout), layout)
        q_THd, k_THd, v_THd = qkv_T3s.unflatten(-1, (3, self.heads, -1)).unbind(1)
        assert self.attention is not None, "the context of PAL needs an attention function"
        mixed_THd = self.attention(q_THd, k_THd, v_THd, layout, self.attention_dropout if self.training else 0.0)
        y_TD: Tensor = projections.up(mixed_THd.flatten(1), layout)
        return F.gelu(y_TD) if self.gelu else y_TD


class Pal(Adapter):
    """Projected attention layers: `LN2(a + FFN(a) + TS(h))`, `TS(h) = V_D g(V_E h)`, g attention in `size` dimensions.

    h is the layer's input, so the branch is parallel to the whole layer. g is multi-head attention without an output
    matrix. V_E and V_D belong to the task and are shared by all layers (`shared_projections: false` gives every layer
    its own); query, key and value belong to the task and the layer. V_E, query, key and value start from N(0, .02^2),
    V_D from N(0, deviation^2): with 0, the default, the branch starts at zero but learns. If V_E started at zero too,
    it would never learn; `deviation: 0.02`, as in the authors' code, changes the pretrained outputs and was reported to
    collapse.
    Paper: Stickland & Murray, "BERT and PALs", 2019 (size 204, 12 heads). The authors' own code differs from the
    formula of the paper: it applies a GELU after V_D, drops attention weights inside g as the encoder does, and has 6
    heads. `gelu: true`, `attention_dropout: 0.1`, `heads: 6` and `deviation: 0.02` reproduce it.
    """

    def __init__(
        self,
        context: AdapterContext,
        *,
        size: Size = 204,
        heads: Size = 12,
        shared_projections: bool = True,
        gelu: bool = False,
        attention_dropout: float = 0.0,
        deviation: NonNegative = 0.0,
        layers: Layers = None,
    ) -> None:
        if size < 1 or heads < 1 or size % heads:
            raise UserError(f"recipe: adapter: size must be a multiple of heads, found size {size} and {heads} heads")
        if not 0 <= attention_dropout < 1:
            raise UserError(f"recipe: adapter: attention_dropout: must be in [0, 1), found {attention_dropout}")
        count = sum(chosen_layers(context, layers))
        up = partial(nn.init.normal_, std=deviation) if deviation else nn.init.zeros_
        projections = [
            Projections(context.tasks, context.hidden, size, up) for _ in range(1 if shared_projections else count)
        ]
        of_layers = iter(projections * count if shared_projections else projections)
        on = on_layers(context, layers, lambda: PalLayer(context, next(of_layers), heads, gelu, attention_dropout))
        super().__init__(LayerAdapter(), on, context.tasks)
        self.projections = nn.ModuleList(projections)
        self.plain_at_start = deviation == 0
