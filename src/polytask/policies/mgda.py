"""MGDA: the shortest convex combination of the tasks' gradients."""

import numpy as np

from polytask.policies.base import Floats, StepPolicy


class Mgda(StepPolicy):
    """Multiple-gradient descent: the shortest vector in the convex hull of the tasks' gradients.

    `min_w |sum_k w_k g_k|, w >= 0, sum_k w_k = 1`. If it is not 0, it improves every task:
    `<g_k, d> >= |d|^2` for all k. It is close to the shortest gradient, and 0 if a task has none.
    Paper: Sener & Koltun, "Multi-Task Learning as Multi-Objective Optimization", 2018.
    Difference: solved exactly; with more than a few tasks, the paper's Frank-Wolfe steps stop before the optimum.
    """

    capturable = True

    def solve(self, gram_KK: Floats) -> Floats:
        return shortest_combination(gram_KK)


def shortest_combination(gram_KK: Floats) -> Floats:
    """`argmin_w |sum_k w_k g_k|` over `w >= 0, sum_k w_k = 1`.

    The minimum of `|sum_k x_k g_k|^2 + (sum_k x_k - 1)^2` over x >= 0 has the same direction, and is a non-negative
    least squares problem.
    """
    lengths_K = np.sqrt(np.diag(gram_KK))
    if not lengths_K.all():
        solution_K: Floats = (lengths_K == 0).astype(np.float64)
    else:
        # Scaled to unit gradients and by the shortest length, so that the accuracy does not depend on their lengths.
        values_K, vectors_KK = np.linalg.eigh(gram_KK / np.outer(lengths_K, lengths_K))
        units_KK = (vectors_KK * np.sqrt(values_K.clip(min=0))).T
        system = np.vstack([units_KK, lengths_K.min() / lengths_K])
        target = np.zeros(len(system))
        target[-1] = 1.0
        from scipy.optimize import nnls  # not for runs without this policy: it takes 0.3 s  # noqa: PLC0415

        solution_K = nnls(system, target, maxiter=100 * len(system))[0] / lengths_K
    weights_K: Floats = solution_K / solution_K.sum()
    return weights_K
