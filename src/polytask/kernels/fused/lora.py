"""LoRA in the fused layer: the linear maps that it does not change stay fused."""

from polytask.adapters.base import LinearSite
from polytask.adapters.lora import LoraLayer
from polytask.fused_forms import fuses
from polytask.kernels.fused.adapter import FusedAdapter


@fuses(LoraLayer)
class FusedLora(FusedAdapter):
    adapter: LoraLayer

    def changes_linear(self, site: LinearSite) -> bool:
        return site in self.adapter.down
