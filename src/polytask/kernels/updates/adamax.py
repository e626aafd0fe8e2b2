"""Adamax in one pass."""
# mypy: allow-untyped-defs

from polytask.kernels.triton_support import jit, tl
from polytask.kernels.updates.one_pass import OnePass


@jit()
def adamax(theta, g, m, u, n):
    g = g + n.decay * theta
    m = n.beta1 * m + n.rest1 * g
    u = tl.maximum(n.beta2 * u, tl.abs(g) + n.eps)
    return theta - n.lr * n.correction1 * m / u, m, u


class AdamaxUpdate(OnePass):
    formula = adamax
    state_names = ("exp_avg", "exp_inf")
