"""AdamW."""

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Literal

import torch

from polytask.optim.base import ListOptimizer, TensorLists, add_quotients, check_options
from polytask.types import UserError

Correction = Literal["exact", "efficient"]


class AdamW(ListOptimizer):
    """Adam with decoupled weight decay.

        m = beta1 m + (1 - beta1) g              m^ = m / (1 - beta1^t)
        v = beta2 v + (1 - beta2) g^2            v^ = v / (1 - beta2^t)
        theta = theta - lr wd theta - lr m^ / (sqrt(v^) + eps)                           correction "exact"
        theta = theta - lr wd theta - lr sqrt(1 - beta2^t) / (1 - beta1^t) m / (sqrt(v) + eps)       "efficient"

    Papers: Kingma and Ba, "Adam", 2015 (the efficient form is the end of section 2); Loshchilov and Hutter,
    "Decoupled Weight Decay Regularization", 2019.

    Differences: decay is multiplied by lr, as in torch and unlike the paper, where only the schedule scales it. The
    efficient form is the exact one with eps / sqrt(1 - beta2^t) instead of eps: a larger eps in the first steps. Each
    parameter counts its own steps; one without a gradient is not updated, not decayed and not counted.
    """

    capturable: ClassVar[bool] = True
    elementwise: ClassVar[bool] = True

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 5e-5,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        correction: Correction = "exact",
    ) -> None:
        check_options("adamw", betas, lr=lr, eps=eps, weight_decay=weight_decay)
        if correction not in ("exact", "efficient"):
            raise UserError(f"adamw: correction must be exact or efficient, found {correction!r}")
        defaults = {"lr": lr, "betas": tuple(betas), "eps": eps, "weight_decay": weight_decay, "correction": correction}
        super().__init__(params, defaults)

    def update(self, lists: TensorLists, options: Mapping[str, Any]) -> None:
        lr, (beta1, beta2) = options["lr"], options["betas"]
        corrections1 = lists.bias_corrections(beta1)
        roots2 = [correction**0.5 for correction in lists.bias_corrections(beta2)]
        torch._foreach_mul_(lists.params, 1 - lr * options["weight_decay"])
        ms, vs = lists.update_moments(options["betas"])
        denominators = torch._foreach_sqrt(vs)
        if options["correction"] == "exact":
            torch._foreach_div_(denominators, roots2)
            factors = [-lr / correction for correction in corrections1]
        else:
            factors = [-lr * root / correction for root, correction in zip(roots2, corrections1, strict=True)]
        torch._foreach_add_(denominators, options["eps"])
        add_quotients(lists.params, ms, denominators, factors)
