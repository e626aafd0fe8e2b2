"""The shortest combination of the tasks' gradients."""

import numpy as np
from scipy.optimize import nnls

from polytask.policies.base import Floats, StepPolicy


class Mgda(StepPolicy):
    """Multiple-gradient descent: the shortest vector in the convex hull of the tasks' gradients.

    `min_w |sum_k w_k g_k|, w >= 0, sum_k w_k = 1`. Where it is not 0, it makes every task better:
    `<g_k, d> >= |d|^2` for all k. It is near the smallest gradient, and 0 where a task has none.
    Paper: Sener & Koltun, "Multi-Task Learning as Multi-Objective Optimization", 2018. Solved exactly; the paper's
    Frank-Wolfe steps stop before the shortest vector when there are more than a few tasks.
    """

    def solve(self, gram_KK: Floats) -> Floats:
        return shortest(gram_KK)


def shortest(gram_KK: Floats) -> Floats:
    """`argmin_w |sum_k w_k g_k|` over `w >= 0, sum_k w_k = 1`.

    The minimum of `|sum_k x_k g_k|^2 + (sum_k x_k - 1)^2` over x >= 0 has the same direction, and is a non-negative
    least squares problem.
    """
    lengths_K = np.sqrt(np.diag(gram_KK))
    if not lengths_K.all():
        answer_K: Floats = (lengths_K == 0).astype(np.float64)
    else:
        # In terms of unit gradients and of the shortest length, so that gradients of any sizes are solved equally well.
        values_K, vectors_KK = np.linalg.eigh(gram_KK / np.outer(lengths_K, lengths_K))
        units_KK = (vectors_KK * np.sqrt(values_K.clip(min=0))).T
        system = np.vstack([units_KK, lengths_K.min() / lengths_K])
        target = np.zeros(len(system))
        target[-1] = 1.0
        answer_K = nnls(system, target, maxiter=100 * len(system))[0] / lengths_K
    weights_K: Floats = answer_K / answer_K.sum()
    return weights_K
