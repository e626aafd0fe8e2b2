"""Adamax."""

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import torch

from polytask.optim.base import ListOptimizer, TensorLists, add_quotients, check_options


class Adamax(ListOptimizer):
    """Adam with the largest recent gradient in place of the root mean square.

        g = g + wd theta
        m = beta1 m + (1 - beta1) g              u = max(beta2 u, |g| + eps)
        theta = theta - lr / (1 - beta1^t) m / u

    Paper: Kingma and Ba, "Adam", 2015, section 7.

    Differences: those of torch's Adamax. Unlike the other optimizers here, its weight decay is part of the gradient
    (L2): it passes through m / u, and dominates gradients that are much smaller than wd theta, so the default is 0. The
    paper has no eps.
    """

    state_names: ClassVar[tuple[str, ...]] = ("exp_avg", "exp_inf")
    capturable: ClassVar[bool] = True
    elementwise: ClassVar[bool] = True

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 5e-5,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        check_options("adamax", betas, lr=lr, eps=eps, weight_decay=weight_decay)
        super().__init__(params, {"lr": lr, "betas": tuple(betas), "eps": eps, "weight_decay": weight_decay})

    def update(self, lists: TensorLists, options: Mapping[str, Any]) -> None:
        (beta1, beta2), ms, us = options["betas"], lists.state["exp_avg"], lists.state["exp_inf"]
        grads = tuple(lists.grads)
        if options["weight_decay"]:
            grads = torch._foreach_add(grads, lists.params, alpha=options["weight_decay"])
        torch._foreach_lerp_(ms, grads, 1 - beta1)
        sizes = torch._foreach_abs(grads)
        torch._foreach_add_(sizes, options["eps"])
        torch._foreach_mul_(us, beta2)
        torch._foreach_maximum_(us, sizes)
        add_quotients(lists.params, ms, us, [-options["lr"] / c for c in lists.bias_corrections(beta1)])
