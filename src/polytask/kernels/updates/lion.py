"""Lion in one pass."""
# mypy: allow-untyped-defs

from polytask.kernels.triton_support import jit, tl
from polytask.kernels.updates.one_pass import OnePass


@jit()
def lion(theta, g, m, unused, n):
    momentum = n.beta1 * m + n.rest1 * g
    sign = tl.where(momentum > 0, 1.0, tl.where(momentum < 0, -1.0, 0.0))
    return theta - n.lr * (n.decay * theta + sign), n.beta2 * m + n.rest2 * g, unused


class LionUpdate(OnePass):
    formula = lion
    state_names = ("exp_avg",)
