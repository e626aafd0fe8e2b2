"""What the optimizers written here have in common: the loop over parameters, their state, and checks of options.

An optimizer's own file is its formula. Knows parameters and their gradients, nothing of tasks or of the model.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from polytask.types import UserError

CHUNK = 2**18
"""Elements per thread that are updated at once on the CPU, so that they stay in the cache between operations."""


@dataclass(frozen=True)
class TensorLists:
    """Parameters that are updated together: all of a group on a GPU, which saves kernel launches; one on the CPU."""

    params: list[Tensor]
    grads: list[Tensor]
    state: Mapping[str, list[Tensor]]
    """The state tensors by name, in the parameters' order."""
    steps: list[float]
    """The number of updates of each parameter, including this one."""

    def bias_corrections(self, beta: float) -> list[float]:
        """`1 - beta^t` for each parameter."""
        return [1 - beta**t for t in self.steps]

    def update_moments(self, betas: tuple[float, float]) -> tuple[list[Tensor], list[Tensor]]:
        """Adam's m = beta1 m + (1 - beta1) g and v = beta2 v + (1 - beta2) g^2, in place, without bias correction."""
        ms, vs = self.state["exp_avg"], self.state["exp_avg_sq"]
        torch._foreach_lerp_(ms, self.grads, 1 - betas[0])
        torch._foreach_mul_(vs, betas[1])
        torch._foreach_addcmul_(vs, self.grads, self.grads, 1 - betas[1])
        return ms, vs

    def chunks(self, size: int) -> Iterator["TensorLists"]:
        """Split a single parameter into chunks of at most this many elements."""
        tensors = [self.params[0], self.grads[0], *(tensors[0] for tensors in self.state.values())]
        for parameter, grad, *state in zip(*(tensor.view(-1).split(size) for tensor in tensors), strict=True):
            named = {name: [tensor] for name, tensor in zip(self.state, state, strict=True)}
            yield TensorLists([parameter], [grad], named, self.steps)


class ListOptimizer(Optimizer):
    """An optimizer that updates lists of parameters.

    Each parameter counts its own steps. A parameter without a gradient is not updated, not decayed and not counted.
    """

    state_names: ClassVar[tuple[str, ...]] = ("exp_avg", "exp_avg_sq")
    """The state tensors of each parameter; they have its shape and start at zero."""
    capturable: ClassVar[bool] = False
    """See `FusedAdamW`: these optimizers count steps in Python, which a CUDA graph cannot."""
    elementwise: ClassVar[bool] = False
    """Whether the update of an element depends on no other element, so that updating in chunks is bit-identical."""

    @abstractmethod
    def update(self, lists: TensorLists, options: Mapping[str, Any]) -> None:
        """Update the parameters and their state in place; `options` are those of their parameter group."""

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._check_dense()
        for group in self.param_groups:
            params = [parameter for parameter in group["params"] if parameter.grad is not None]
            on_gpu = all(parameter.is_cuda for parameter in params)
            # torch allows a tensor as learning rate, but the operations on lists need a number.
            options = {**group, "lr": float(group["lr"])}
            for together in [params] if params and on_gpu else [[parameter] for parameter in params]:
                self._update(self._lists(together), options)
        return loss

    def _check_dense(self) -> None:
        """Refuse sparse gradients before any parameter is updated."""
        grads = [parameter.grad for group in self.param_groups for parameter in group["params"]]
        if any(grad is not None and grad.layout != torch.strided for grad in grads):
            raise UserError(
                f"{type(self).__name__}: sparse gradients are not supported; create the embedding with sparse=False"
            )

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Called by `load_state_dict`. A state saved by torch's AdamW gets the options that it lacks."""
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

    def _update(self, lists: TensorLists, options: Mapping[str, Any]) -> None:
        """Update in one call, or in chunks if it is one large parameter on the CPU."""
        first = lists.params[0]
        size = CHUNK * torch.get_num_threads()
        tensors = [first, lists.grads[0], *(tensors[0] for tensors in lists.state.values())]
        large = self.elementwise and not first.is_cuda and first.numel() > size
        in_chunks = large and all(tensor.is_contiguous() for tensor in tensors)
        for part in lists.chunks(size) if in_chunks else [lists]:
            self.update(part, options)

    def _state_of(self, parameter: Tensor) -> dict[str, Tensor]:
        state: dict[str, Tensor] = self.state[parameter]
        if not state:
            state["step"] = torch.tensor(0.0)  # on the CPU, so that reading it does not wait for a device
            for name in self.state_names:
                state[name] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
        return state


def check_options(name: str, betas: tuple[float, float] | None = None, **numbers: float) -> None:
    """Check an optimizer's options: betas must be in [0, 1), all other numbers at least 0. lr may be a tensor."""
    for option, value in numbers.items():
        if isinstance(value, Tensor) and value.numel() != 1:
            raise UserError(f"{name}: {option} must have one element, found a tensor of shape {tuple(value.shape)}")
        if not value >= 0:
            raise UserError(f"{name}: {option} must be at least 0, found {value}")
    if betas is not None and (len(betas) != 2 or not all(0 <= beta < 1 for beta in betas)):
        raise UserError(f"{name}: betas must be two numbers in [0, 1), found {betas}")
