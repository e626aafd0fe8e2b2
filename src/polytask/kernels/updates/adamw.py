"""AdamW in one pass: for `adamw`, `fused_adamw` and torch's own."""
# mypy: allow-untyped-defs

from collections.abc import Mapping
from typing import Any

from polytask.kernels.triton_support import jit, tl
from polytask.kernels.updates.one_pass import OnePass


@jit()
def adamw(theta, g, m, v, n):
    m = n.beta1 * m + n.rest1 * g
    v = n.beta2 * v + n.rest2 * g * g
    # The efficient correction is the exact one with eps / sqrt(1 - beta2^t) instead of eps.
    eps = tl.where(n.extra0 != 0, n.eps * tl.sqrt(n.correction2), n.eps)
    step = m * n.correction1 / (tl.sqrt(v * n.correction2) + eps)
    return theta - n.lr * (n.decay * theta + step), m, v


class AdamWUpdate(OnePass):
    formula = adamw

    def extras(self, group: Mapping[str, Any]) -> list[float]:
        return [float(group.get("correction") == "efficient")]
