"""AdamW, written out. Knows parameters and their gradients, nothing of tasks or of the model."""

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from polytask.optim.base import ListOptimizer, check_options, update_moments
from polytask.types import UserError

Correction = Literal["exact", "efficient"]


class AdamW(ListOptimizer):
    """Adam with weight decay applied to the weights themselves, beside the gradient's step.

        m = beta1 m + (1 - beta1) g              m^ = m / (1 - beta1^t)
        v = beta2 v + (1 - beta2) g^2            v^ = v / (1 - beta2^t)
        theta = theta - lr wd theta - lr m^ / (sqrt(v^) + eps)                           correction "exact"
        theta = theta - lr wd theta - lr sqrt(1 - beta2^t) / (1 - beta1^t) m / (sqrt(v) + eps)       "efficient"

    Papers: Kingma and Ba, "Adam", 2015 (the efficient form is the end of section 2); Loshchilov and Hutter,
    "Decoupled Weight Decay Regularization", 2019.

    Differences: decay is multiplied by lr, as in torch and unlike the paper, where only the schedule scales it. The
    efficient form is the exact one with eps / sqrt(1 - beta2^t) in place of eps: a larger eps in the first steps. Each
    parameter counts its own steps, and one without a gradient neither moves, nor decays, nor counts.
    """

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
            raise UserError(f"adamw: correction is {correction!r}, and must be exact or efficient")
        defaults = {"lr": lr, "betas": tuple(betas), "eps": eps, "weight_decay": weight_decay, "correction": correction}
        super().__init__(params, defaults)

    def move(
        self,
        params: list[Tensor],
        grads: list[Tensor],
        kept: Mapping[str, list[Tensor]],
        steps: list[float],
        group: dict[str, Any],
    ) -> None:
        lr, (beta1, beta2) = group["lr"], group["betas"]
        rests1, roots2 = [1 - beta1**t for t in steps], [(1 - beta2**t) ** 0.5 for t in steps]
        torch._foreach_mul_(params, 1 - lr * group["weight_decay"])
        ms, vs = update_moments(grads, kept, group["betas"])
        scales = torch._foreach_sqrt(vs)
        if group["correction"] == "exact":
            torch._foreach_div_(scales, roots2)
            sizes = [-lr / rest for rest in rests1]
        else:
            sizes = [-lr * root / rest for root, rest in zip(roots2, rests1, strict=True)]
        torch._foreach_add_(scales, group["eps"])
        torch._foreach_addcdiv_(params, ms, scales, sizes)
