"""QHAdam in one pass."""
# mypy: allow-untyped-defs

from collections.abc import Mapping
from typing import Any

from polytask.kernels.triton_support import jit, tl
from polytask.kernels.updates.one_pass import OnePass


@jit()
def qhadam(theta, g, m, v, n):
    nu1, rest1, nu2, rest2 = n.extra0, n.extra1, n.extra2, n.extra3
    m = n.beta1 * m + n.rest1 * g
    v = n.beta2 * v + n.rest2 * g * g
    mean = rest1 * g + nu1 * (m * n.correction1)
    square = rest2 * g * g + nu2 * (v * n.correction2)
    return theta - n.lr * (n.decay * theta + mean / (tl.sqrt(square) + n.eps)), m, v


class QHAdamUpdate(OnePass):
    formula = qhadam

    def extras(self, group: Mapping[str, Any]) -> list[float]:
        return [number for nu in group["nus"] for number in (nu, 1 - nu)]
