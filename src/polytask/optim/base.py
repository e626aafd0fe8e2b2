"""What the optimizers written here have in common: who moves in a step, and what is kept of each parameter.

Knows parameters and their gradients, nothing of tasks or of the model.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from polytask.types import UserError

PIECE = 2**18
"""Elements for each thread that are moved at once on the CPU: what they need stays in the cache between operations."""


class ListOptimizer(Optimizer):
    """An optimizer that moves lists of parameters at once.

    Each parameter counts its own steps, and one without a gradient neither moves, nor decays, nor counts.
    """

    kept: ClassVar[tuple[str, ...]] = ("exp_avg", "exp_avg_sq")
    """The tensors kept of each parameter, of its shape and zero at the start."""
    capturable: ClassVar[bool] = False
    """See `FusedAdamW`: these count their steps in Python, which a CUDA graph cannot."""
    elementwise: ClassVar[bool] = False
    """Each element moves as if it were alone, so a tensor may be moved in pieces, with the same result to the bit."""

    @abstractmethod
    def move(
        self,
        params: list[Tensor],
        grads: list[Tensor],
        kept: Mapping[str, list[Tensor]],
        steps: list[float],
        group: dict[str, Any],
    ) -> None:
        """Moves `params` and what is `kept` of them; `steps` counts, for each, this step too."""

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._refuse_sparse()
        for group in self.param_groups:
            moving = [parameter for parameter in group["params"] if parameter.grad is not None]
            # All at once on a GPU, which saves launches; one by one on the CPU, and large ones in pieces.
            on_gpu = all(parameter.is_cuda for parameter in moving)
            # A learning rate may be a tensor, as torch's can; the operations on lists take numbers only.
            options = {**group, "lr": float(group["lr"])}
            for together in [moving] if moving and on_gpu else [[parameter] for parameter in moving]:
                self._move(together, options)
        return loss

    def _refuse_sparse(self) -> None:
        """Before anything moves: the operations on lists take dense tensors only."""
        grads = [parameter.grad for group in self.param_groups for parameter in group["params"]]
        if any(grad is not None and grad.layout != torch.strided for grad in grads):
            raise UserError(
                f"{type(self).__name__}: found a sparse gradient, and only dense ones are supported; make the "
                "embedding with sparse=False"
            )

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Called by `load_state_dict`. Groups that torch's AdamW saved get the options that it does not have."""
        for group in state["param_groups"]:
            for option in ("amsgrad", "maximize"):
                if group.get(option):
                    raise UserError(f"{type(self).__name__}: the state was saved with {option}=True, which it lacks")
        super().__setstate__(state)
        for group in self.param_groups:
            for option, value in self.defaults.items():
                group.setdefault(option, value)

    def _move(self, params: list[Tensor], group: dict[str, Any]) -> None:
        states = [self._state_of(parameter) for parameter in params]
        for state in states:
            state["step"] += 1
        grads = [parameter.grad for parameter in params if parameter.grad is not None]
        kept = {name: [state[name] for state in states] for name in self.kept}
        steps = [state["step"].item() for state in states]
        held = [params[0], grads[0], *(tensors[0] for tensors in kept.values())]
        size = PIECE * torch.get_num_threads()
        large = self.elementwise and not params[0].is_cuda and params[0].numel() > size
        if not large or not all(tensor.is_contiguous() for tensor in held):
            self.move(params, grads, kept, steps, group)
            return
        for parameter, grad, *rest in zip(*(tensor.view(-1).split(size) for tensor in held), strict=True):
            self.move([parameter], [grad], {name: [t] for name, t in zip(kept, rest, strict=True)}, steps, group)

    def _state_of(self, parameter: Tensor) -> dict[str, Tensor]:
        state: dict[str, Tensor] = self.state[parameter]
        if not state:
            state["step"] = torch.tensor(0.0)  # on the CPU, so that reading it waits for no device
            for name in self.kept:
                state[name] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
        return state


def update_moments(
    grads: list[Tensor], kept: Mapping[str, list[Tensor]], betas: tuple[float, float]
) -> tuple[list[Tensor], list[Tensor]]:
    """Adam's m = beta1 m + (1 - beta1) g and v = beta2 v + (1 - beta2) g^2, in place and before bias correction."""
    ms, vs = kept["exp_avg"], kept["exp_avg_sq"]
    torch._foreach_lerp_(ms, grads, 1 - betas[0])
    torch._foreach_mul_(vs, betas[1])
    torch._foreach_addcmul_(vs, grads, grads, 1 - betas[1])
    return ms, vs


def check_options(name: str, betas: tuple[float, float] | None = None, **numbers: float) -> None:
    """What every optimizer's options must be: betas from 0 to below 1, everything else 0 or more.

    lr may be a tensor of one element.
    """
    for option, value in numbers.items():
        if isinstance(value, Tensor) and value.numel() != 1:
            raise UserError(f"{name}: {option} is a tensor of shape {tuple(value.shape)}, and must have one element")
        if not value >= 0:
            raise UserError(f"{name}: {option} is {value}, and must be 0 or more")
    if betas is not None and (len(betas) != 2 or not all(0 <= beta < 1 for beta in betas)):
        raise UserError(f"{name}: betas is {betas}, and must be two numbers from 0 to below 1")
