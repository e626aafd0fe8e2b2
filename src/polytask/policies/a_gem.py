"""A-GEM: no step may increase the average loss of the remembered tasks."""

import torch
from torch import Tensor

from polytask.policies.base import GradientPolicy, Keep, MemoryPlan, PolicyContext
from polytask.policies.gradients import G, combine_gradients
from polytask.settings import Count


class AGem(GradientPolicy):
    """Averaged gradient episodic memory: one reference gradient g_ref on the examples of all memories.

    If `<g, g_ref> < 0`: `g - (<g, g_ref> / |g_ref|^2) g_ref`, else g. Memories as for `gem`; each remembered task
    contributes to g_ref by its share of the examples and its `weight`.
    Paper: Chaudhry et al., "Efficient Lifelong Learning with A-GEM", 2019.
    """

    capturable = True

    def __init__(
        self, context: PolicyContext, *, size: Count = 256, keep: Keep = "reservoir", batch: Count | None = None
    ) -> None:
        super().__init__(context)
        self.memory = MemoryPlan(size, keep, batch, one_gradient=True)

    def combine(self, gram_KK: Tensor, own: int) -> Tensor:
        weights_K = torch.ones(len(gram_KK), dtype=gram_KK.dtype)
        weights_K[own:] = 0.0
        if own < len(gram_KK):
            dot, square = gram_KK[:own, own].sum(), gram_KK[own, own]
            if dot < 0:
                weights_K[own] = -dot / square
        return weights_K


def project(gradient: G, memory: G) -> G:
    """Return the gradient without its conflict with the gradient of the examples of all memories.

    A gradient is a tensor of any shape, or a list with one tensor (or None) per parameter.
    """
    return combine_gradients(AGem, [gradient], [memory])
