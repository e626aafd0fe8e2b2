"""The mean of gradients that make no task worse."""

import numpy as np

from polytask.policies.base import Floats, StepPolicy
from polytask.policies.gem import dual

RIDGE = 1e-6


class UpGrad(StepPolicy):
    """Each task's gradient is projected to where no task gets worse; the mean of the projections.

    The projection of g_k on `{d: <g_j, d> >= 0 for all j}` is `g_k + sum_j v_j g_j`, v from gem's dual problem with the
    step's own tasks as constraints and a ridge of 1e-6.
    Paper: Quinton & Rey, "Jacobian Descent for Multi-Objective Optimization", 2024.
    """

    def solve(self, gram_KK: Floats) -> Floats:
        weights_KK = np.array([one_K + dual(gram_KK, gram_KK @ one_K, 0.0, RIDGE) for one_K in np.eye(len(gram_KK))])
        mean_K: Floats = weights_KK.mean(0)
        return mean_K
