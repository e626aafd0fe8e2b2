"""LAMB, written out. Knows parameters and their gradients, nothing of tasks or of the model."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from polytask.optim.base import ListOptimizer, check_options, update_moments


class Lamb(ListOptimizer):
    """Adam whose step is as long, for each matrix, as lr times the matrix.

        m, v, m^, v^ as in adamw
        r = m^ / (sqrt(v^) + eps) + wd theta
        theta = theta - lr phi(|theta|) / |r| r          phi(z) = min(z, clamp)

    The ratio phi(|theta|) / |r| is 1 where either norm is 0, and for biases, norms and all other vectors.

    Paper: You et al., "Large Batch Optimization for Deep Learning", 2020. It is made for batches of thousands. lr is a
    share of the weights' size: an lr of 1e-3 moves weights of about 0.05 as far as adamw with 5e-5 does.

    Differences: the paper leaves phi open. Well-known code for torch cuts |theta| at 10, as here; `clamp: null` is the
    identity. Vectors are left out of the ratio as in the authors' settings for BERT, and what the paper calls a layer
    is one tensor.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        clamp: float | None = 10.0,
    ) -> None:
        highest = float("inf") if clamp is None else clamp
        check_options("lamb", betas, lr=lr, eps=eps, weight_decay=weight_decay, clamp=highest)
        defaults = {"lr": lr, "betas": tuple(betas), "eps": eps, "weight_decay": weight_decay, "clamp": highest}
        super().__init__(params, defaults)

    def move(
        self,
        params: list[Tensor],
        grads: list[Tensor],
        kept: Mapping[str, list[Tensor]],
        steps: list[float],
        group: dict[str, Any],
    ) -> None:
        beta1, beta2 = group["betas"]
        ms, vs = update_moments(grads, kept, group["betas"])
        scales = torch._foreach_sqrt(vs)
        torch._foreach_div_(scales, [(1 - beta2**t) ** 0.5 for t in steps])
        torch._foreach_add_(scales, group["eps"])
        ways = torch._foreach_div(ms, [1 - beta1**t for t in steps])
        torch._foreach_div_(ways, scales)
        if group["weight_decay"]:
            torch._foreach_add_(ways, params, alpha=group["weight_decay"])
        self._stretch(ways, params, group["clamp"])
        torch._foreach_add_(params, ways, alpha=-group["lr"])

    @staticmethod
    def _stretch(ways: tuple[Tensor, ...], params: list[Tensor], clamp: float) -> None:
        """Gives each matrix's step the length phi(|theta|), without waiting for the device."""
        of_matrices = [(way, parameter) for way, parameter in zip(ways, params, strict=True) if parameter.ndim > 1]
        if of_matrices:
            steps, matrices = map(list, zip(*of_matrices, strict=True))
            lengths = torch.stack(torch._foreach_norm(steps))
            sizes = torch.stack(torch._foreach_norm(matrices)).clamp(max=clamp)
            ratios = torch.where((lengths > 0) & (sizes > 0), sizes / lengths, 1.0)
            torch._foreach_mul_(steps, ratios.unbind())
