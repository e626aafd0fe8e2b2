"""Projected attention layers: a small attention of each task beside every layer."""

import torch.nn.functional as F
from torch import Tensor, nn

from polytask.adapters.base import Adapter, AdapterContext, LayerAdapter, chosen_layers, normal
from polytask.adapters.grouped import ALIGNED, Projections, TaskLinear
from polytask.encoders.attention import attend, attend_packed
from polytask.kernels.one_product import ZeroPadding, one_product
from polytask.stream import Layout
from polytask.types import Size, UserError


class PalLayer(LayerAdapter):
    """One layer's branch."""

    def __init__(
        self, context: AdapterContext, projections: Projections, heads: int, gelu: bool, attention_dropout: float
    ) -> None:
        super().__init__()
        self.heads = heads
        self.gelu = gelu
        self.attention_dropout = attention_dropout
        # A tuple, because layers may share them: a module would put them into the state of every layer.
        self.projections = (projections,)
        # Query, key and value in one map: with many tasks, few products matter more than their size.
        self.query_key_value = TaskLinear(context.tasks, projections.size, 3 * projections.size, normal)

    def parallel(self, x_TD: Tensor, layout: Layout) -> Tensor:
        if x_TD.is_cuda and layout.alone is not None:
            y_TD = self.filled_up(x_TD, layout, layout.alone)
        else:
            (projections,) = self.projections
            qkv_T3s = self.query_key_value(projections.down(x_TD, layout), layout)
            q_THd, k_THd, v_THd = qkv_T3s.unflatten(-1, (3, self.heads, -1)).unbind(1)
            y_TD = projections.up(attend(q_THd, k_THd, v_THd, layout, self._dropout).flatten(1), layout)
        return F.gelu(y_TD) if self.gelu else y_TD

    @property
    def _dropout(self) -> float:
        return self.attention_dropout if self.training else 0.0

    def filled_up(self, x_TD: Tensor, layout: Layout, k: int) -> Tensor:
        """The branch of task k's tokens, its dimensions and those of each head filled up with zeros to multiples of 8,
        which a GPU's products need to be fast; the paper's 204 = 12 x 17 has none."""
        (projections,) = self.projections
        size, head = projections.size, projections.size // self.heads
        more, more_head = -size % ALIGNED, -head % ALIGNED
        if projections not in layout.made:  # which layers may share
            (own_down, own_bias), (own_up, up_bias) = projections.down.own(k), projections.up.own(k)
            up = F.pad(own_up.unflatten(1, (self.heads, head)), (0, more_head)).flatten(1)
            rows = ZeroPadding(rows=more)
            layout.made[projections] = rows.fill(own_down), rows.fill(own_bias), up, up_bias
        down, down_bias, up, up_bias = layout.made[projections]
        weight, bias = self.query_key_value.own(k)
        filling = ZeroPadding(3 * self.heads, more_head, more)
        qkv_T3s = one_product(one_product(x_TD, [down], [down_bias]), [weight], [bias], filling)
        qkv_T3Hd = qkv_T3s.unflatten(-1, (3, self.heads, -1))
        mixed_THd = attend_packed(qkv_T3Hd, layout, self._dropout, scale=head**-0.5)
        return one_product(mixed_THd.flatten(1), [up], [up_bias])


class Pal(Adapter):
    """Projected attention layers: `LN2(a + FFN(a) + TS(h))`, `TS(h) = V_D g(V_E h)`, g attention in `size` dimensions.

    h is the layer's input, so the branch runs beside the whole layer; g has several heads and no output matrix. V_E and
    V_D belong to the task and are shared by all layers (`shared_projections: false` gives every layer its own); query,
    key and value are per task and layer. V_D starts at zero, so the branch starts silent but learns: both at zero would
    never learn, and both random, as in the authors' code, is not silent and was reported to collapse.
    Paper: Stickland & Murray, "BERT and PALs", 2019 (size 204, 12 heads). The authors' code differs from the paper: it
    has 6 heads, ends in a GELU after V_D, and drops attention weights inside g as the encoder does. `heads: 6`,
    `gelu: true` and `attention_dropout: 0.1` are that code, except for the start of V_D.
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
        layers: int | None = None,
    ) -> None:
        if size < 1 or heads < 1 or size % heads:
            raise UserError(f"recipe: adapter: {heads} heads do not divide a size of {size}")
        if not 0 <= attention_dropout < 1:
            raise UserError(f"recipe: adapter: attention_dropout: must be in [0, 1), found {attention_dropout}")
        chosen = chosen_layers(context, layers)
        made = [
            Projections(context.tasks, context.hidden, size) for _ in range(1 if shared_projections else sum(chosen))
        ]
        next_projections = iter(made * sum(chosen) if shared_projections else made)
        super().__init__(
            LayerAdapter(),
            (
                PalLayer(context, next(next_projections), heads, gelu, attention_dropout) if here else LayerAdapter()
                for here in chosen
            ),
            context.tasks,
        )
        self.projections = nn.ModuleList(made)
