"""What the optimizers have in common: the loop over parameters, their state, and checks of options.

An optimizer's own file is its formula. Knows parameters and their gradients, nothing of tasks or of the model.

The learning rate and the numbers of steps may be tensors, so that an update reads no value on the host. The operations
of torch that scale a sum need numbers; `add_scaled`, `add_products` and `add_quotients` accept both.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch
from torch import Tensor
from torch.optim import Optimizer

from polytask.fused_forms import fusible
from polytask.types import UserError

Number = float | Tensor
"""A tensor has one element and no dimensions."""
Tensors = list[Tensor] | tuple[Tensor, ...]


@dataclass(frozen=True)
class TensorLists:
    """Parameters of one group that are updated together."""

    params: list[Tensor]
    grads: list[Tensor]
    state: Mapping[str, list[Tensor]]
    """The state tensors by name, in the parameters' order."""
    steps: Sequence[Number]
    """The number of updates of each parameter, including this one."""

    def bias_corrections(self, beta: float) -> list[Any]:
        """`1 - beta^t` for each parameter."""
        return [1 - beta**t for t in self.steps]

    def update_moments(self, betas: tuple[float, float]) -> tuple[list[Tensor], list[Tensor]]:
        """Adam's m = beta1 m + (1 - beta1) g and v = beta2 v + (1 - beta2) g^2, in place, without bias correction."""
        ms, vs = self.state["exp_avg"], self.state["exp_avg_sq"]
        torch._foreach_lerp_(ms, self.grads, 1 - betas[0])
        torch._foreach_mul_(vs, betas[1])
        torch._foreach_addcmul_(vs, self.grads, self.grads, 1 - betas[1])
        return ms, vs


class ListOptimizer(Optimizer):
    """An optimizer that updates lists of parameters.

    Each parameter counts its own steps. A parameter without a gradient is not updated, not decayed and not counted.
    """

    state_names: ClassVar[tuple[str, ...]] = ("exp_avg", "exp_avg_sq")
    """The state tensors of each parameter; they have its shape and start at zero."""
    capturable: ClassVar[bool] = False
    """Whether steps with this optimizer can be captured in a CUDA graph: kernels/updates has a one-pass form of its
    update, or `step` itself can be captured (see `FusedAdamW`). Each class declares this for itself; a subclass does
    not inherit it."""
    elementwise: ClassVar[bool] = False
    """Whether the update of an element depends on no other element, so that updating in chunks is bit-identical."""

    @abstractmethod
    def update(self, lists: TensorLists, options: Mapping[str, Any]) -> None:
        """Update the parameters and their state in place; `options` are those of their parameter group."""

    @fusible
    def update_lists(self, lists: TensorLists, options: Mapping[str, Any]) -> None:
        """Update all parameters of a group that have a gradient."""
        self.update(lists, options)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._check_dense()
        for group in self.param_groups:
            params = [parameter for parameter in group["params"] if parameter.grad is not None]
            if params:
                self.update_lists(self._lists(params), {**group, "lr": float(group["lr"])})
        return loss

    def _check_dense(self) -> None:
        """Refuse sparse gradients before any parameter is updated."""
        grads = [parameter.grad for group in self.param_groups for parameter in group["params"]]
        if any(grad is not None and grad.layout != torch.strided for grad in grads):
            raise UserError(
                f"{type(self).__name__}: sparse gradients are not supported; create the embedding with sparse=False"
            )

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Called by `load_state_dict`. A state saved by torch's own optimizer gets the options that it lacks."""
        for group in state["param_groups"]:
            for option in ("amsgrad", "maximize"):
                if group.get(option):
                    raise UserError(
                        f"{type(self).__name__}: the state was saved with {option}=True, which is not supported"
                    )
        super().__setstate__(state)
        for group in self.param_groups:
            for option, value in self.defaults.items():
                group.setdefault(option, value)

    def _lists(self, params: list[Tensor]) -> TensorLists:
        """Count the step and collect the parameters' gradients and state."""
        states = [self._state_of(parameter) for parameter in params]
        for state in states:
            state["step"] += 1
        return TensorLists(
            params,
            [parameter.grad for parameter in params if parameter.grad is not None],
            {name: [state[name] for state in states] for name in self.state_names},
            [state["step"].item() for state in states],
        )

    def _state_of(self, parameter: Tensor) -> dict[str, Tensor]:
        """Return the state of a parameter; create it before the first step."""
        state: dict[str, Tensor] = self.state[parameter]
        if not state:
            state["step"] = torch.tensor(0.0)  # on the CPU, because `step` reads it
            for name in self.state_names:
                state[name] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
        return state


def add_scaled(sums: Tensors, tensors: Tensors, factor: Number) -> None:
    """sums += factor * tensors, in place."""
    if isinstance(factor, Tensor):
        torch._foreach_add_(sums, torch._foreach_mul(tensors, factor))
    else:
        torch._foreach_add_(sums, tensors, alpha=factor)


def add_products(sums: Tensors, ones: Tensors, others: Tensors, factors: Sequence[Number]) -> None:
    """sums += factors * ones * others, in place."""
    if isinstance(factors[0], Tensor):
        torch._foreach_addcmul_(sums, torch._foreach_mul(ones, _tensors(factors)), others)
    else:
        torch._foreach_addcmul_(sums, ones, others, _floats(factors))


def add_quotients(sums: Tensors, ones: Tensors, others: Tensors, factors: Sequence[Number]) -> None:
    """sums += factors * ones / others, in place."""
    if isinstance(factors[0], Tensor):
        torch._foreach_addcdiv_(sums, torch._foreach_mul(ones, _tensors(factors)), others)
    else:
        torch._foreach_addcdiv_(sums, ones, others, _floats(factors))


def _tensors(factors: Sequence[Number]) -> list[Tensor]:
    return cast("list[Tensor]", factors)


def _floats(factors: Sequence[Number]) -> list[float]:
    return cast("list[float]", factors)


def check_options(name: str, betas: tuple[float, float] | None = None, **numbers: float) -> None:
    """Check an optimizer's options: betas must be in [0, 1), all other numbers at least 0. lr may be a tensor."""
    for option, value in numbers.items():
        if isinstance(value, Tensor) and value.numel() != 1:
            raise UserError(f"{name}: {option} must have one element, found a tensor of shape {tuple(value.shape)}")
        if not value >= 0:
            raise UserError(f"{name}: {option} must be at least 0, found {value}")
    if betas is not None and (len(betas) != 2 or not all(0 <= beta < 1 for beta in betas)):
        raise UserError(f"{name}: betas must be two numbers in [0, 1), found {betas}")
