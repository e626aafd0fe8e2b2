"""LAMB."""

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from polytask.optim.base import ListOptimizer, TensorLists, add_scaled, check_options


class Lamb(ListOptimizer):
    """Adam whose step for each matrix has the norm of the matrix times lr.

        m, v, m^, v^ as in adamw
        r = m^ / (sqrt(v^) + eps) + wd theta
        theta = theta - lr phi(|theta|) / |r| r          phi(z) = min(z, clamp)

    The ratio phi(|theta|) / |r| is 1 if either norm is 0, and for biases, norms and all other vectors.

    Paper: You et al., "Large Batch Optimization for Deep Learning", 2020. It is intended for batches of
    thousands. lr is relative to the size of the weights: with lr 1e-3, weights of about 0.05 change as much as with
    adamw and lr 5e-5.

    Differences: the paper leaves phi open. Well-known code for torch clamps |theta| to 10, as here; `clamp: null` is
    the identity. Vectors have no ratio, as in the authors' settings for BERT, and what the paper calls a layer is one
    tensor.
    """

    capturable: ClassVar[bool] = True

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
        bound = float("inf") if clamp is None else clamp
        check_options("lamb", betas, lr=lr, eps=eps, weight_decay=weight_decay, clamp=bound)
        defaults = {"lr": lr, "betas": tuple(betas), "eps": eps, "weight_decay": weight_decay, "clamp": bound}
        super().__init__(params, defaults)

    def update(self, lists: TensorLists, options: Mapping[str, Any]) -> None:
        beta1, beta2 = options["betas"]
        ms, vs = lists.update_moments(options["betas"])
        denominators = torch._foreach_sqrt(vs)
        torch._foreach_div_(denominators, [correction**0.5 for correction in lists.bias_corrections(beta2)])
        torch._foreach_add_(denominators, options["eps"])
        rs = torch._foreach_div(ms, lists.bias_corrections(beta1))
        torch._foreach_div_(rs, denominators)
        if options["weight_decay"]:
            torch._foreach_add_(rs, lists.params, alpha=options["weight_decay"])
        _scale_to_norm(rs, lists.params, options["clamp"])
        add_scaled(lists.params, rs, -options["lr"])


def _scale_to_norm(rs: tuple[Tensor, ...], params: list[Tensor], clamp: float) -> None:
    """Scale each matrix's step r to the norm phi(|theta|), without waiting for the device."""
    pairs = [(r, parameter) for r, parameter in zip(rs, params, strict=True) if parameter.ndim > 1]
    if pairs:
        steps, matrices = map(list, zip(*pairs, strict=True))
        lengths = torch.stack(torch._foreach_norm(steps))
        sizes = torch.stack(torch._foreach_norm(matrices)).clamp(max=clamp)
        ratios = torch.where((lengths > 0) & (sizes > 0), sizes / lengths, 1.0)
        torch._foreach_mul_(steps, ratios.unbind())
