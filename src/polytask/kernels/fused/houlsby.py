"""Houlsby's bottlenecks in the fused layer: a kernel of their own, and the residual sum left to the next one."""

from torch import Tensor

from polytask.adapters.base import SublayerSite
from polytask.adapters.houlsby import Bottleneck, HoulsbyLayer
from polytask.fused_forms import fuses
from polytask.kernels.bias_gelu import bias_gelu
from polytask.kernels.bottleneck import bottleneck, bottleneck_fits
from polytask.kernels.fused.adapter import FusedAdapter
from polytask.kernels.one_product import one_product
from polytask.stream import Layout


@fuses(HoulsbyLayer)
class FusedHoulsby(FusedAdapter):
    adapter: HoulsbyLayer

    def changes_sublayer(self, site: SublayerSite) -> bool:
        return self.adapter.bottleneck(site) is not None

    def changes_output(self) -> bool:
        return self.adapter.bottleneck("layer") is not None

    def sublayer_terms(
        self, site: SublayerSite, y_TD: Tensor, layout: Layout
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        part = self.adapter.bottleneck(site)
        if part is None or layout.only_task is None:
            return super().sublayer_terms(site, y_TD, layout)
        return bottleneck_terms(part, y_TD, layout.only_task)


def bottleneck_terms(part: Bottleneck, x_TD: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """The terms of task k's bottleneck: x, `W_D gelu(W_E x + b_E)` and b_D."""
    (down, down_bias), (up, up_bias) = part.down.own(k), part.up.own(k)
    if bottleneck_fits(x_TD, down):
        return *bottleneck(x_TD, down, down_bias, up), up_bias
    return x_TD, one_product(bias_gelu(one_product(x_TD, [down]), down_bias), [up]), up_bias
