"""UPGrad: the mean of gradients that are projected so that no task gets worse."""

import numpy as np

from polytask.policies.base import Floats, StepPolicy
from polytask.policies.gem import solve_dual


class UpGrad(StepPolicy):
    """The mean of the tasks' gradients, each projected so that no task gets worse.

    The projection of g_k on `{d: <g_j, d> >= 0 for all j}` is `g_k + sum_j v_j g_j`, where v solves gem's dual problem
    with the step's own tasks as constraints.
    Paper: Quinton & Rey, "Jacobian Descent for Multi-Objective Optimization", 2024.
    """

    capturable = True

    def solve(self, gram_KK: Floats) -> Floats:
        units_KK = np.eye(len(gram_KK))
        weights_KK = np.array([unit_K + solve_dual(gram_KK, gram_KK @ unit_K) for unit_K in units_KK])
        mean_K: Floats = weights_KK.mean(0)
        return mean_K
