"""No step may make the remembered tasks worse on the whole."""

import torch
from torch import Tensor

from polytask.policies.base import GradientPolicy, Keep, MemoryPlan, PolicyContext


class AGem(GradientPolicy):
    """Averaged gradient episodic memory: one gradient g_ref on examples of all memories together.

    Where `<g, g_ref> < 0`: `g - (<g, g_ref> / |g_ref|^2) g_ref`, else g. Memories as for `gem`; each remembered task
    counts to g_ref by its share of the examples and its `weight`.
    Paper: Chaudhry et al., "Efficient Lifelong Learning with A-GEM", 2019.
    """

    def __init__(
        self, context: PolicyContext, *, size: int = 256, keep: Keep = "reservoir", batch: int | None = None
    ) -> None:
        super().__init__(context)
        self.plan = MemoryPlan(size, keep, batch, one_gradient=True)

    @property
    def memory(self) -> MemoryPlan:
        return self.plan

    def combine(self, gram_KK: Tensor, own: int) -> Tensor:
        weights_K = torch.ones(len(gram_KK), dtype=gram_KK.dtype)
        weights_K[own:] = 0.0
        if own < len(gram_KK):
            dot, square = gram_KK[:own, own].sum(), gram_KK[own, own]
            if dot < 0:
                weights_K[own] = -dot / square
        return weights_K
