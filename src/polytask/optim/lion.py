"""Lion."""

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import torch

from polytask.optim.base import ListOptimizer, TensorLists, add_scaled, check_options


class Lion(ListOptimizer):
    """Steps of equal length in every coordinate: the sign of a momentum.

        theta = theta - lr wd theta - lr sign(beta1 m + (1 - beta1) g)
        m = beta2 m + (1 - beta2) g

    It keeps one state tensor per parameter; Adam keeps two.

    Paper: Chen et al., "Symbolic Discovery of Optimization Algorithms", 2023. It advises a learning rate 3 to 10 times
    smaller than AdamW's and a decay as many times larger; the defaults are adamw's divided and multiplied by 5.

    Differences: none.
    """

    state_names: ClassVar[tuple[str, ...]] = ("exp_avg",)
    capturable: ClassVar[bool] = True
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

    def update(self, lists: TensorLists, options: Mapping[str, Any]) -> None:
        (beta1, beta2), ms = options["betas"], lists.state["exp_avg"]
        torch._foreach_mul_(lists.params, 1 - options["lr"] * options["weight_decay"])
        directions = torch._foreach_lerp(ms, lists.grads, 1 - beta1)
        torch._foreach_sign_(directions)
        add_scaled(lists.params, directions, -options["lr"])
        torch._foreach_lerp_(ms, lists.grads, 1 - beta2)
