"""DualProj: the mean gradient, projected so that no task gets worse."""

import numpy as np

from polytask.policies.base import Floats, StepPolicy
from polytask.policies.gem import solve_dual


class DualProj(StepPolicy):
    """The projection of the mean gradient g on `{d: <g_k, d> >= 0 for all k}`: `g + sum_k v_k g_k`.

    v solves gem's dual problem with every task of the step as a constraint.
    Paper: Lopez-Paz & Ranzato, "Gradient Episodic Memory for Continual Learning", 2017, equation 11.
    """

    capturable = True

    def solve(self, gram_KK: Floats) -> Floats:
        mean_K = np.full(len(gram_KK), 1 / len(gram_KK))
        return mean_K + solve_dual(gram_KK, gram_KK @ mean_K)
