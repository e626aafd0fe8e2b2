"""A stack in the fused layer: the fused forms of its parts."""

from torch import Tensor

from polytask.adapters.base import LinearSite, NormSite, SublayerSite
from polytask.adapters.stack import StackLayer, sum_branches
from polytask.fused_forms import fuses
from polytask.kernels.fused.adapter import FusedAdapter, fused_adapter
from polytask.stream import Layout


@fuses(StackLayer)
class FusedStack(FusedAdapter):
    def __init__(self, adapter: StackLayer) -> None:
        super().__init__(adapter)
        self.parts = [fused_adapter(part) for part in adapter.adapters()]

    def changes_linear(self, site: LinearSite) -> bool:
        return any(part.changes_linear(site) for part in self.parts)

    def changes_attention(self) -> bool:
        return any(part.changes_attention() for part in self.parts)

    def changes_sublayer(self, site: SublayerSite) -> bool:
        return any(part.changes_sublayer(site) for part in self.parts)

    def changes_output(self) -> bool:
        return any(part.changes_output() for part in self.parts)

    def affine(self, site: NormSite, gamma_D: Tensor, beta_D: Tensor, layout: Layout) -> tuple[Tensor, Tensor] | None:
        vectors: tuple[Tensor, Tensor] | None = gamma_D, beta_D
        for part in self.parts:
            vectors = vectors and part.affine(site, *vectors, layout)
        return vectors

    def parallel(self, x_TD: Tensor, layout: Layout) -> Tensor | None:
        return sum_branches(part.parallel(x_TD, layout) for part in self.parts)
