"""PAL's branch in the fused layer, with sizes padded to multiples of 8.

A GPU's products need such sizes to be fast; neither the paper's size of 204 nor its heads of 17 is one.
"""

import torch.nn.functional as F
from torch import Tensor

from polytask.adapters.pal import PalLayer
from polytask.fused_forms import fuses
from polytask.kernels.attention import attend_packed
from polytask.kernels.fused.adapter import FusedAdapter
from polytask.kernels.one_product import ZeroPadding, one_product
from polytask.kernels.pass_cache import once_per_pass
from polytask.stream import Layout

ALIGNMENT = 8


@fuses(PalLayer)
class FusedPal(FusedAdapter):
    adapter: PalLayer

    def parallel(self, x_TD: Tensor, layout: Layout) -> Tensor | None:
        if layout.only_task is None:
            return self.adapter.parallel(x_TD, layout)
        y_TD = padded_branch(self.adapter, x_TD, layout, layout.only_task)
        return F.gelu(y_TD) if self.adapter.gelu else y_TD


def padded_branch(pal: PalLayer, x_TD: Tensor, layout: Layout, k: int) -> Tensor:
    """The branch of task k, before its GELU."""
    (projections,) = pal.projections
    size, head = projections.size, projections.size // pal.heads
    more, more_head = -size % ALIGNMENT, -head % ALIGNMENT

    def pad_projections() -> tuple[Tensor, Tensor, Tensor, Tensor]:
        (down, down_bias), (up, up_bias) = projections.down.own(k), projections.up.own(k)
        padded_up = F.pad(up.unflatten(1, (pal.heads, head)), (0, more_head)).flatten(1)
        rows = ZeroPadding(rows=more)
        return rows.pad(down), rows.pad(down_bias), padded_up, up_bias

    # Layers may share the projections.
    down, down_bias, up, up_bias = once_per_pass(layout, projections, pad_projections)
    weight, bias = pal.query_key_value.own(k)
    padding = ZeroPadding(3 * pal.heads, more_head, more)
    qkv_T3s = one_product(one_product(x_TD, [down], [down_bias]), [weight], [bias], padding)
    dropout = pal.attention_dropout if pal.training else 0.0
    mixed_THd = attend_packed(qkv_T3s.unflatten(-1, (3, pal.heads, -1)), layout, dropout, scale=head**-0.5)
    return one_product(mixed_THd.flatten(1), [up], [up_bias])
