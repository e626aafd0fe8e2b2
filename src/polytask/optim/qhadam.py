"""QHAdam."""

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import torch

from polytask.optim.base import ListOptimizer, TensorLists, add_products, add_quotients, check_options
from polytask.types import UserError


class QHAdam(ListOptimizer):
    """Adam whose averages are mixed with the current gradient (quasi-hyperbolic).

        m, v, m^, v^ as in adamw
        theta = theta - lr wd theta - lr [(1 - nu1) g + nu1 m^] / (sqrt((1 - nu2) g^2 + nu2 v^) + eps)

    With nus (1, 1) it is bit-identical to AdamW; nu1 = 0 uses no momentum.

    Paper: Ma and Yarats, "Quasi-hyperbolic momentum and Adam for deep learning", 2019; the defaults of nus and betas
    are those it recommends.

    Differences: decoupled weight decay, multiplied by lr, as in adamw; the paper has none.
    """

    capturable: ClassVar[bool] = True
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
            raise UserError(f"qhadam: nus must be two numbers in [0, 1], found {nus}")
        defaults = {"lr": lr, "betas": tuple(betas), "nus": tuple(nus), "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, defaults)

    def update(self, lists: TensorLists, options: Mapping[str, Any]) -> None:
        lr, (beta1, beta2), (nu1, nu2), grads = options["lr"], options["betas"], options["nus"], lists.grads
        corrections1, corrections2 = lists.bias_corrections(beta1), lists.bias_corrections(beta2)
        torch._foreach_mul_(lists.params, 1 - lr * options["weight_decay"])
        ms, vs = lists.update_moments(options["betas"])
        # Both fractions are expanded by their bias correction, so that with nus of 1 the operations are AdamW's.
        numerators, squares = ms, vs
        if nu1 < 1:
            numerators = list(torch._foreach_mul(ms, nu1))
            torch._foreach_add_(numerators, torch._foreach_mul(grads, [(1 - nu1) * c for c in corrections1]))
        if nu2 < 1:
            squares = list(torch._foreach_mul(vs, nu2))
            add_products(squares, grads, grads, [(1 - nu2) * c for c in corrections2])
        denominators = torch._foreach_sqrt(squares)
        torch._foreach_div_(denominators, [c**0.5 for c in corrections2])
        torch._foreach_add_(denominators, options["eps"])
        add_quotients(lists.params, numerators, denominators, [-lr / c for c in corrections1])
