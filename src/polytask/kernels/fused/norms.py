"""Conditional layer norm in the fused layer: both sums of vectors in one kernel each way, where torch has six."""

from typing import Any

import torch
from torch import Tensor

from polytask.adapters.base import NormSite
from polytask.adapters.conditional_norm import ConditionalNormLayer
from polytask.fused_forms import fuses
from polytask.kernels.fused.adapter import FusedAdapter
from polytask.stream import Layout


@fuses(ConditionalNormLayer)
class FusedConditionalNorm(FusedAdapter):
    adapter: ConditionalNormLayer

    def affine(self, site: NormSite, gamma_D: Tensor, beta_D: Tensor, layout: Layout) -> tuple[Tensor, Tensor] | None:
        k = layout.only_task
        if k is None:
            return None
        scale_D, shift_D = self.adapter.scales.vector(site, k), self.adapter.shifts.vector(site, k)
        sums = _AddPairs.apply(gamma_D, beta_D, scale_D, shift_D)  # type: ignore[no-untyped-call]
        return sums[0], sums[1]


class _AddPairs(torch.autograd.Function):
    """`a + c, b + d`."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> tuple[Tensor, Tensor]:
        one, two = torch._foreach_add([a, b], [c, d])
        return one, two

    @staticmethod
    def backward(ctx: Any, one: Tensor, two: Tensor) -> tuple[Tensor, ...]:
        return one, two, *torch._foreach_mul([one, two], 1.0)
