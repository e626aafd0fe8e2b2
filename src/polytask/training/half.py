"""bf16 copies of the weights of linear maps, made once a step. Knows modules and parameters; knows no method.

Under autocast each weight is cast by a kernel of its own, and so is its gradient: hundreds of launches a step. Here all
are cast by a few, and the same numbers come out.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


class HalfWeights:
    """Stands in for the weights of every linear map of a module; the optimizer keeps the float32 ones.

    Those are `nn.Linear`'s, and the matrices in parameter lists, which are the tasks' own.
    """

    def __init__(self, model: nn.Module) -> None:
        self.places = [
            (module, name)
            for module in model.modules()
            if isinstance(module, nn.Linear | nn.ParameterList)
            for name, parameter in module.named_parameters(recurse=False)
            if isinstance(module, nn.Linear) or parameter.ndim == 2
        ]
        self.full: list[nn.Parameter] = [getattr(module, name) for module, name in self.places]
        self.half = [nn.Parameter(p.detach().bfloat16(), requires_grad=p.requires_grad) for p in self.full]

    @contextmanager
    def standing_in(self) -> Iterator[None]:
        """Inside, the module computes with the copies, as they are now."""
        learning = [k for k, parameter in enumerate(self.full) if parameter.requires_grad]
        with torch.no_grad():
            torch._foreach_copy_([self.half[k] for k in learning], [self.full[k] for k in learning])
        self._put(self.half)
        try:
            yield
        finally:
            self._put(self.full)

    def _put(self, parameters: list[nn.Parameter]) -> None:
        for (module, name), parameter in zip(self.places, parameters, strict=True):
            module._parameters[name] = parameter

    def move_gradients(self) -> None:
        """The copies' gradients become those of the weights."""
        moved = [
            (full, half, half.grad) for full, half in zip(self.full, self.half, strict=True) if half.grad is not None
        ]
        gradients = [torch.empty_like(full) for full, _, _ in moved]
        torch._foreach_copy_(gradients, [gradient for _, _, gradient in moved])
        for (full, half, _), gradient in zip(moved, gradients, strict=True):
            full.grad, half.grad = gradient, None
