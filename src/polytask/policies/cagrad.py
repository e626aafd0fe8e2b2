"""The mean gradient, turned towards the task that gains least from it."""

import math

import numpy as np
from scipy.optimize import brentq

from polytask.policies.base import Floats, PolicyContext, StepPolicy
from polytask.policies.mgda import shortest
from polytask.types import UserError

CANCELLED = 1e-6
"""A combination this much shorter than its parts is rounding: gradients are in float32."""


class CaGrad(StepPolicy):
    """Conflict-averse gradient: `max_d min_k <g_k, d>` within `|d - g_0| <= c |g_0|`, g_0 the mean gradient.

    `d = g_0 + c |g_0| g_w / |g_w|`, `g_w = sum_k w_k g_k`, w the answer of the dual problem
    `min_w <g_w, g_0> + c |g_0| |g_w|, w >= 0, sum_k w_k = 1`. Where that has no answer with a direction (g_w = 0: no
    update in reach is better for the task that gains least), d is the mean g_0.
    Paper: Liu et al., "Conflict-Averse Gradient Descent for Multi-Task Learning", 2021 (c from 0.2 to 0.8). The
    authors' code divides d by 1 + c^2 by default; the paper does not, and neither does this.
    """

    def __init__(self, context: PolicyContext, *, c: float = 0.5) -> None:
        if c < 0:
            raise UserError(f"recipe: policy.c: 0 or more is needed, found {c}")
        self.c = c
        super().__init__(context)

    def solve(self, gram_KK: Floats) -> Floats:
        mean_K = np.full(len(gram_KK), 1 / len(gram_KK))
        radius = self.c * length_of(mean_K, gram_KK)
        if radius == 0:
            return mean_K
        weights_K = worst_off(gram_KK, radius)
        length = length_of(weights_K, gram_KK)
        if length <= CANCELLED * (weights_K @ np.sqrt(np.diag(gram_KK))):
            return mean_K
        return mean_K + radius / length * weights_K


def worst_off(gram_KK: Floats, radius: float) -> Floats:
    """`argmin_w <g_w, g_0> + r |g_w|` over `w >= 0, sum_k w_k = 1`, r the radius.

    Because `|g_w| = min_s (|g_w|^2 / s + s) / 2`, this is the w(s) of the shortest `g_w + (s / r) g_0` for the s at
    which `|g_w(s)| = s`; `|g_w(s)| / s` falls as s grows, so there is one such s.
    """
    mean_K = np.full(len(gram_KK), 1 / len(gram_KK))

    def solution(s: float) -> Floats:
        shifted_KK = np.eye(len(gram_KK)) + s / radius * mean_K
        return shortest(shifted_KK @ gram_KK @ shifted_KK.T)

    def excess(log_s: float) -> float:
        s = math.exp(log_s)
        return math.log(max(length_of(solution(s), gram_KK) / s, CANCELLED))

    lengths_K = np.sqrt(np.diag(gram_KK))
    low, high = math.log(CANCELLED * lengths_K[lengths_K > 0].min()), math.log(lengths_K.max())
    if excess(low) <= 0:  # the shortest combination is 0, and no other is better
        return shortest(gram_KK)
    root: float = brentq(excess, low, high + 1e-9, xtol=1e-13)
    return solution(math.exp(root))


def length_of(weights_K: Floats, gram_KK: Floats) -> float:
    """`|sum_k weights_k g_k|`."""
    return math.sqrt(max(float(weights_K @ gram_KK @ weights_K), 0.0))
