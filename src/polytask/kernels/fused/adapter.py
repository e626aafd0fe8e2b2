"""What the fused layer asks of a layer adapter.

`fused_adapter` looks up the fused form of the adapter's class. An adapter without one is used through its slots; the
fused layer then leaves to its kernels what the adapter's class does not override.
"""

from torch import Tensor

from polytask.adapters.base import LayerAdapter, LinearSite, NormSite, SublayerSite
from polytask.fused_forms import fused_form
from polytask.stream import Layout


class FusedAdapter:
    """A layer adapter as the fused layer uses it; by default everything is left to the adapter's slots."""

    def __init__(self, adapter: LayerAdapter) -> None:
        self.adapter = adapter

    def overrides(self, slot: str) -> bool:
        return getattr(type(self.adapter), slot) is not getattr(LayerAdapter, slot)

    def changes_linear(self, site: LinearSite) -> bool:
        return self.overrides("linear")

    def changes_attention(self) -> bool:
        return self.overrides("attend")

    def changes_sublayer(self, site: SublayerSite) -> bool:
        return self.overrides("sublayer")

    def changes_output(self) -> bool:
        return self.overrides("output")

    def affine(self, site: NormSite, gamma_D: Tensor, beta_D: Tensor, layout: Layout) -> tuple[Tensor, Tensor] | None:
        """The scale and shift of a norm, if they are the same for the whole stream."""
        if not self.overrides("affine"):
            return gamma_D, beta_D
        return None if layout.only_task is None else self.adapter.affine(site, gamma_D, beta_D, layout.only_task)

    def sublayer_terms(
        self, site: SublayerSite, y_TD: Tensor, layout: Layout
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """`sublayer` as terms of a sum that is still to be computed: two [T, D] tensors and a bias."""
        return self.adapter.sublayer(site, y_TD, layout), None, None

    def parallel(self, x_TD: Tensor, layout: Layout) -> Tensor | None:
        return self.adapter.parallel(x_TD, layout)


def fused_adapter(adapter: LayerAdapter) -> FusedAdapter:
    form: type[FusedAdapter] = fused_form(type(adapter)) or FusedAdapter
    return form(adapter)
