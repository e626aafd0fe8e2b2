"""Adamax: torch's implementation with the options that recipes use."""

from collections.abc import Iterable
from typing import Any

import torch

from polytask.optim.base import check_options


class Adamax(torch.optim.Adamax):
    """Adam with the largest recent gradient in place of the root mean square.

        g = g + wd theta
        m = beta1 m + (1 - beta1) g              u = max(beta2 u, |g| + eps)
        theta = theta - lr / (1 - beta1^t) m / u

    Paper: Kingma and Ba, "Adam", 2015, section 7.

    Differences: this is torch's code. Unlike the other optimizers here, its weight decay is part of the gradient (L2):
    it passes through m / u, and dominates gradients that are much smaller than wd theta, so the default is 0. eps is
    torch's; the paper has none.
    """

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
        super().__init__(params, lr=lr, betas=(betas[0], betas[1]), eps=eps, weight_decay=weight_decay)
