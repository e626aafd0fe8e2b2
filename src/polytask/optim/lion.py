"""Lion, written out. Knows parameters and their gradients, nothing of tasks or of the model."""

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from polytask.optim.base import ListOptimizer, check_options


class Lion(ListOptimizer):
    """Steps of one length in every coordinate: the sign of a momentum.

        theta = theta - lr wd theta - lr sign(beta1 m + (1 - beta1) g)
        m = beta2 m + (1 - beta2) g

    It keeps one tensor of each parameter where Adam keeps two.

    Paper: Chen et al., "Symbolic Discovery of Optimization Algorithms", 2023. It advises a learning rate 3 to 10 times
    smaller than AdamW's and a decay as many times larger; the defaults are adamw's divided and multiplied by 5.

    Differences: none.
    """

    kept: ClassVar[tuple[str, ...]] = ("exp_avg",)
    elementwise: ClassVar[bool] = True

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-5,
        *,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.05,
    ) -> None:
        check_options("lion", betas, lr=lr, weight_decay=weight_decay)
        super().__init__(params, {"lr": lr, "betas": tuple(betas), "weight_decay": weight_decay})

    def move(
        self,
        params: list[Tensor],
        grads: list[Tensor],
        kept: Mapping[str, list[Tensor]],
        steps: list[float],
        group: dict[str, Any],
    ) -> None:
        beta1, beta2 = group["betas"]
        torch._foreach_mul_(params, 1 - group["lr"] * group["weight_decay"])
        ways = torch._foreach_lerp(kept["exp_avg"], grads, 1 - beta1)
        torch._foreach_sign_(ways)
        torch._foreach_add_(params, ways, alpha=-group["lr"])
        torch._foreach_lerp_(kept["exp_avg"], grads, 1 - beta2)
