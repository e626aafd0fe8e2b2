"""CAGrad: the mean gradient, turned towards the task that improves least."""

import math

import numpy as np

from polytask.policies.base import Floats, PolicyContext, StepPolicy
from polytask.policies.mgda import shortest_combination
from polytask.settings import NonNegative

CANCELLED = 1e-6
"""A combination shorter than this share of its parts is rounding error: gradients are in float32."""


class CaGrad(StepPolicy):
    """Conflict-averse gradient: `max_d min_k <g_k, d>` within `|d - g_0| <= c |g_0|`, g_0 the mean gradient.

    `d = g_0 + c |g_0| g_w / |g_w|`, `g_w = sum_k w_k g_k`, w the solution of the dual problem
    `min_w <g_w, g_0> + c |g_0| |g_w|, w >= 0, sum_k w_k = 1`. If g_w = 0, no update within the radius is better for the
    task that improves least, and d is the mean g_0.
    Paper: Liu et al., "Conflict-Averse Gradient Descent for Multi-Task Learning", 2021 (c from 0.2 to 0.8), which does
    not divide d by 1 + c^2 as the authors' code does by default.
    """

    capturable = True

    def __init__(self, context: PolicyContext, *, c: NonNegative = 0.5) -> None:
        super().__init__(context)
        self.c = c

    def solve(self, gram_KK: Floats) -> Floats:
        mean_K = np.full(len(gram_KK), 1 / len(gram_KK))
        radius = self.c * combined_length(mean_K, gram_KK)
        if radius == 0:
            return mean_K
        weights_K = dual_weights(gram_KK, radius)
        length = combined_length(weights_K, gram_KK)
        if length <= CANCELLED * (weights_K @ np.sqrt(np.diag(gram_KK))):
            return mean_K
        return mean_K + radius / length * weights_K


def dual_weights(gram_KK: Floats, radius: float) -> Floats:
    """`argmin_w <g_w, g_0> + r |g_w|` over `w >= 0, sum_k w_k = 1`, r the radius.

    Because `|g_w| = min_s (|g_w|^2 / s + s) / 2`, this is the w(s) of the shortest `g_w + (s / r) g_0` for the s at
    which `|g_w(s)| = s`; `|g_w(s)| / s` decreases in s, so there is exactly one such s.
    """
    mean_K = np.full(len(gram_KK), 1 / len(gram_KK))

    def solution(s: float) -> Floats:
        shifted_KK = np.eye(len(gram_KK)) + s / radius * mean_K
        return shortest_combination(shifted_KK @ gram_KK @ shifted_KK.T)

    def excess(log_s: float) -> float:
        s = math.exp(log_s)
        return math.log(max(combined_length(solution(s), gram_KK) / s, CANCELLED))

    lengths_K = np.sqrt(np.diag(gram_KK))
    low, high = math.log(CANCELLED * lengths_K[lengths_K > 0].min()), math.log(lengths_K.max())
    if excess(low) <= 0:  # the shortest combination has length 0, which is optimal
        return shortest_combination(gram_KK)
    from scipy.optimize import brentq  # not for runs without this policy: it takes 0.3 s  # noqa: PLC0415

    root: float = brentq(excess, low, high + 1e-9, xtol=1e-13)
    return solution(math.exp(root))


def combined_length(weights_K: Floats, gram_KK: Floats) -> float:
    """`|sum_k weights_k g_k|`."""
    return math.sqrt(max(float(weights_K @ gram_KK @ weights_K), 0.0))
