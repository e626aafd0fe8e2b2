"""IMTL-G: an update with equal projections on all tasks' gradients."""

import numpy as np

from polytask.policies.base import Floats, StepPolicy


class ImtlG(StepPolicy):
    """Impartial multi-task learning: the update has the same projection on every task's gradient direction.

    `v = G^+ (|g_1|, ..., |g_K|)'`, G^+ the pseudo-inverse of the Gram matrix, and the weights are `v / sum_k v_k`. They
    may be negative. If the sum is 0, such weights do not exist, and the update is the mean.
    Paper: Liu et al., "Towards Impartial Multi-Task Learning", 2021; linearly dependent gradients as in Quinton & Rey,
    "Jacobian Descent for Multi-Objective Optimization", 2024.
    """

    capturable = True

    def solve(self, gram_KK: Floats) -> Floats:
        rounding = len(gram_KK) * np.finfo(np.float64).eps
        inverse_KK: Floats = np.linalg.pinv(gram_KK, rcond=rounding, hermitian=True).astype(np.float64)
        lengths_K: Floats = np.sqrt(np.diag(gram_KK))
        v_K: Floats = inverse_KK @ lengths_K
        if abs(v_K.sum()) <= rounding * (np.abs(inverse_KK) @ lengths_K).sum():
            return np.full(len(v_K), 1 / len(v_K))
        weights_K: Floats = v_K / v_K.sum()
        return weights_K
