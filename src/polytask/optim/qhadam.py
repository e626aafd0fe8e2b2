"""QHAdam, written out. Knows parameters and their gradients, nothing of tasks or of the model."""

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from polytask.optim.base import ListOptimizer, check_options, update_moments
from polytask.types import UserError


class QHAdam(ListOptimizer):
    """Adam whose averages are mixed with the step's own gradient (quasi-hyperbolic).

        m, v, m^, v^ as in adamw
        theta = theta - lr wd theta - lr [(1 - nu1) g + nu1 m^] / (sqrt((1 - nu2) g^2 + nu2 v^) + eps)

    nus (1, 1) is AdamW to the last bit; nu1 = 0 uses no momentum.

    Paper: Ma and Yarats, "Quasi-hyperbolic momentum and Adam for deep learning", 2019; the defaults of nus and betas
    are those it recommends.

    Differences: weight decay is beside the gradient's step and multiplied by lr, as in adamw; the paper has none.
    """

    elementwise: ClassVar[bool] = True

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 5e-5,
        *,
        betas: tuple[float, float] = (0.995, 0.999),
        nus: tuple[float, float] = (0.7, 1.0),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
    ) -> None:
        check_options("qhadam", betas, lr=lr, eps=eps, weight_decay=weight_decay)
        if len(nus) != 2 or not all(0 <= nu <= 1 for nu in nus):
            raise UserError(f"qhadam: nus is {nus}, and must be two numbers from 0 to 1")
        defaults = {"lr": lr, "betas": tuple(betas), "nus": tuple(nus), "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, defaults)

    def move(
        self,
        params: list[Tensor],
        grads: list[Tensor],
        kept: Mapping[str, list[Tensor]],
        steps: list[float],
        group: dict[str, Any],
    ) -> None:
        lr, (beta1, beta2), (nu1, nu2) = group["lr"], group["betas"], group["nus"]
        rests1, rests2 = [1 - beta1**t for t in steps], [1 - beta2**t for t in steps]
        torch._foreach_mul_(params, 1 - lr * group["weight_decay"])
        ms, vs = update_moments(grads, kept, group["betas"])
        # Both fractions are expanded by their correction, so that nus of 1 leave exactly AdamW's operations.
        ups, downs = ms, vs
        if nu1 < 1:
            ups = list(torch._foreach_mul(ms, nu1))
            torch._foreach_add_(ups, torch._foreach_mul(grads, [(1 - nu1) * rest for rest in rests1]))
        if nu2 < 1:
            downs = list(torch._foreach_mul(vs, nu2))
            torch._foreach_addcmul_(downs, grads, grads, [(1 - nu2) * rest for rest in rests2])
        scales = torch._foreach_sqrt(downs)
        torch._foreach_div_(scales, [rest**0.5 for rest in rests2])
        torch._foreach_add_(scales, group["eps"])
        torch._foreach_addcdiv_(params, ups, scales, [-lr / rest for rest in rests1])
