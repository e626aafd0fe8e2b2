"""PCGrad: each task's gradient without its conflicts with the other tasks'."""

import torch

from polytask.policies.base import Floats, StepPolicy


class PcGrad(StepPolicy):
    """Gradient surgery: each task's gradient loses its components that conflict with the others, in random order.

    `g_i <- g_i - (<g_i, g_j> / |g_j|^2) g_j` if `<g_i, g_j> < 0`, for each j; the sum over i is the update.
    Paper: Yu et al., "Gradient Surgery for Multi-Task Learning", 2020. Gradients are those of all shared parameters
    together.
    """

    capturable = True
    averages = False
    generator: torch.Generator | None = None
    """Draws the order; None: torch's global generator."""

    def solve(self, gram_KK: Floats) -> Floats:
        gram = torch.from_numpy(gram_KK)
        weights_KK = torch.eye(len(gram), dtype=gram.dtype)  # row i: the weights of the gradients in g_i
        for i, weights_K in enumerate(weights_KK):
            for j in torch.randperm(len(gram), generator=self.generator).tolist():
                product = weights_K @ gram[j]
                if j != i and product < 0:
                    weights_K[j] -= product / gram[j, j]
        weights: Floats = weights_KK.sum(0).numpy()
        return weights
