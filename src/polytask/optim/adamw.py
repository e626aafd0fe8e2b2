"""AdamW, written out. Knows parameters and their gradients, nothing of tasks or of the model."""

from collections.abc import Callable, Iterable
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim import Optimizer

from polytask.types import UserError

Correction = Literal["exact", "efficient"]


class AdamW(Optimizer):
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

    def __init__(
        self,
        params: Iterable[Any],
        *,
        lr: float = 5e-5,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        correction: Correction = "exact",
    ) -> None:
        for name, value in {"lr": lr, "eps": eps, "weight_decay": weight_decay}.items():
            if not value >= 0:
                raise UserError(f"adamw: {name} is {value}, and must be 0 or more")
        if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
            raise UserError(f"adamw: betas is {betas}, and must be two numbers from 0 to below 1")
        if correction not in ("exact", "efficient"):
            raise UserError(f"adamw: correction is {correction!r}, and must be exact or efficient")
        defaults = {"lr": lr, "betas": tuple(betas), "eps": eps, "weight_decay": weight_decay, "correction": correction}
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            moving = [parameter for parameter in group["params"] if parameter.grad is not None]
            # All at once on a GPU, which saves launches; one by one on the CPU, where a tensor then stays in the cache.
            on_gpu = all(parameter.is_cuda for parameter in moving)
            for together in [moving] if moving and on_gpu else [[parameter] for parameter in moving]:
                self._move(together, group)
        return loss

    def _move(self, params: list[Tensor], group: dict[str, Any]) -> None:
        lr, (beta1, beta2), eps = group["lr"], group["betas"], group["eps"]
        states = [self._state_of(parameter) for parameter in params]
        grads = [parameter.grad for parameter in params if parameter.grad is not None]
        ms = [state["exp_avg"] for state in states]
        vs = [state["exp_avg_sq"] for state in states]
        for state in states:
            state["step"] += 1
        steps = [state["step"].item() for state in states]
        rests1, roots2 = [1 - beta1**t for t in steps], [(1 - beta2**t) ** 0.5 for t in steps]

        torch._foreach_mul_(params, 1 - lr * group["weight_decay"])
        torch._foreach_lerp_(ms, grads, 1 - beta1)
        torch._foreach_mul_(vs, beta2)
        torch._foreach_addcmul_(vs, grads, grads, 1 - beta2)
        scales = torch._foreach_sqrt(vs)
        if group["correction"] == "exact":
            torch._foreach_div_(scales, roots2)
            sizes = [-lr / rest for rest in rests1]
        else:
            sizes = [-lr * root / rest for root, rest in zip(roots2, rests1, strict=True)]
        torch._foreach_add_(scales, eps)
        torch._foreach_addcdiv_(params, ms, scales, sizes)

    def _state_of(self, parameter: Tensor) -> dict[str, Tensor]:
        state: dict[str, Tensor] = self.state[parameter]
        if not state:
            state["step"] = torch.tensor(0.0)  # on the CPU, so that reading it waits for no device
            state["exp_avg"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
            state["exp_avg_sq"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
        return state
