"""Bottleneck adapters inside every layer."""

from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

from polytask.adapters.base import Adapter, AdapterContext, LayerAdapter, NormSite, SublayerSite, chosen_layers
from polytask.adapters.grouped import TaskLinear
from polytask.kernels.bias_gelu import bias_gelu
from polytask.kernels.fused.bottleneck import bottleneck, bottleneck_fits
from polytask.kernels.one_product import one_product
from polytask.stream import Layout
from polytask.types import Size

Position = Literal["after_ffn", "after_norm", "both_sublayers"]


def nearly_zero(weight: Tensor) -> None:
    """Truncated normal with a deviation of 1e-3, cut at two deviations: the adapter starts near the identity."""
    nn.init.trunc_normal_(weight, std=1e-3, a=-2e-3, b=2e-3)


class Bottleneck(nn.Module):
    """`x + W_D gelu(W_E x + b_E) + b_D`."""

    def __init__(self, context: AdapterContext, size: int) -> None:
        super().__init__()
        self.down = TaskLinear(context.tasks, context.hidden, size, nearly_zero)
        self.up = TaskLinear(context.tasks, size, context.hidden, nearly_zero)

    def forward(self, x_TD: Tensor, layout: Layout) -> Tensor:
        change_TD: Tensor = self.up(F.gelu(self.down(x_TD, layout)), layout)
        return x_TD + change_TD

    def summands(self, x_TD: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
        """Of task k's tokens, as a GPU computes it: x, W_D gelu(...) and b_D."""
        (down, down_bias), (up, up_bias) = self.down.own(k), self.up.own(k)
        if bottleneck_fits(x_TD, down):
            return *bottleneck(x_TD, down, down_bias, up), up_bias
        return x_TD, one_product(bias_gelu(one_product(x_TD, [down]), down_bias), [up]), up_bias


class HoulsbyLayer(LayerAdapter):
    def __init__(self, context: AdapterContext, size: int, position: Position) -> None:
        super().__init__()
        self.position = position
        self.ffn = Bottleneck(context, size)
        self.attention = Bottleneck(context, size) if position == "both_sublayers" else None

    def sublayer(self, site: SublayerSite, y_TD: Tensor, layout: Layout) -> Tensor:
        part = self.attention if site == "attention" else self.ffn
        if self.plain_sublayer(site) or part is None:
            return y_TD
        changed_TD: Tensor = part(y_TD, layout)
        return changed_TD

    def sublayer_sum(
        self, site: SublayerSite, y_TD: Tensor, layout: Layout
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        part = self.attention if site == "attention" else self.ffn
        if self.plain_sublayer(site) or part is None or layout.alone is None:
            return self.sublayer(site, y_TD, layout), None, None
        return part.summands(y_TD, layout.alone)

    def plain_sublayer(self, site: SublayerSite) -> bool:
        return self.position == "after_norm" or (site == "attention" and self.position == "after_ffn")

    def norm(self, site: NormSite, base: nn.Module, x_TD: Tensor, layout: Layout) -> Tensor:
        y_TD = super().norm(site, base, x_TD, layout)
        if self.position == "after_norm" and site == "ffn":
            y_TD = self.ffn(y_TD, layout)
        return y_TD

    def norm_vectors(
        self, site: NormSite, scale_D: Tensor, shift_D: Tensor, layout: Layout
    ) -> tuple[Tensor, Tensor] | None:
        return None if self.position == "after_norm" and site == "ffn" else (scale_D, shift_D)


class Houlsby(Adapter):
    """Bottleneck adapters: `x + W_D gelu(W_E x + b_E) + b_D` of each task, in every layer.

    Position: both_sublayers (the paper: on the outputs of attention and of the feed-forward part, before the residual
    sum), after_ffn (on the latter only), after_norm (on the layer's output). They start near the identity (truncated
    normal, deviation 1e-3, zero biases), not exactly at it. Made for frozen encoders (`train.parts: adapters`).
    Paper: Houlsby et al., "Parameter-Efficient Transfer Learning for NLP", 2019 (size 64).
    """

    plain_at_start = False

    def __init__(
        self,
        context: AdapterContext,
        *,
        size: Size = 64,
        position: Position = "both_sublayers",
        layers: int | None = None,
    ) -> None:
        super().__init__(
            LayerAdapter(),
            (
                HoulsbyLayer(context, size, position) if here else LayerAdapter()
                for here in chosen_layers(context, layers)
            ),
            context.tasks,
        )
