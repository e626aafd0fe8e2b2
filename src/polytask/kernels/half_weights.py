"""bf16 copies of the weights of linear maps. Knows modules and parameters; knows no method.

Under autocast each weight is cast by a kernel of its own, and so is its gradient: hundreds of launches a step. Here all
are cast by a few, or by the update that moves the weights, and the same numbers come out.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

ALIGNED = 64  # numbers, so that products can load every copy in wide pieces


class HalfWeights:
    """Stands in for the weights of every linear map of a module; the optimizer keeps the float32 ones.

    Those are `nn.Linear`'s, and the matrices in parameter lists, which are the tasks' own.
    """

    def __init__(self, model: nn.Module) -> None:
        self.places = [
            (module, name, parameter)
            for module in model.modules()
            if isinstance(module, nn.Linear | nn.ParameterList)
            for name, parameter in module.named_parameters(recurse=False)
            if isinstance(module, nn.Linear) or parameter.ndim == 2
        ]
        self.copies = _copied([full for _, _, full in self.places])
        self._seen: list[tuple[int, int] | None] = [*self._marks()]

    @contextmanager
    def standing_in(self, cast: bool = True) -> Iterator[None]:
        """Inside, the module computes with the copies; those that learn are cast before, unless they are right."""
        if cast:
            self._cast([full for full in self.copies if full.requires_grad])
        for module, name, full in self.places:
            module._parameters[name] = self.copies[full]
        try:
            yield
        finally:
            for module, name, full in self.places:
                module._parameters[name] = full

    def refresh(self) -> None:
        """Casts those weights anew that were changed by others than an update that writes the copies too.

        Whatever torch does to a tensor in place, loading a checkpoint for example, counts its version up; graphs and
        kernels of our own do not. Fused optimizers do not either: after a step of theirs, `forget`. What is written
        through `.data` would not be seen.
        """
        marks = self._marks()
        if marks != self._seen:
            changed = zip(self.copies, marks, self._seen, strict=True)
            self._cast([full for full, now, before in changed if now != before])
            self._seen = [*marks]

    def forget(self) -> None:
        """No copy is right any more."""
        self._seen = [None] * len(self.copies)

    def _marks(self) -> list[tuple[int, int]]:
        return [(full._version, full.data_ptr()) for full in self.copies]

    @torch.no_grad()
    def _cast(self, weights: list[nn.Parameter]) -> None:
        torch._foreach_copy_([self.copies[full] for full in weights], tuple(weights))

    def move_gradients(self) -> None:
        """The copies' gradients become those of the weights."""
        moved = [(full, half, half.grad) for full, half in self.copies.items() if half.grad is not None]
        gradients = [torch.empty_like(full) for full, _, _ in moved]
        torch._foreach_copy_(gradients, [gradient for _, _, gradient in moved])
        for (full, half, _), gradient in zip(moved, gradients, strict=True):
            full.grad, half.grad = gradient, None

    def drop_gradients(self) -> None:
        for half in self.copies.values():
            half.grad = None


def _copied(weights: list[nn.Parameter]) -> dict[nn.Parameter, nn.Parameter]:
    """In one piece of memory, matrices before vectors: neighbouring maps can then be one product as they are
    (encoder/one_product.py)."""
    order = sorted(dict.fromkeys(weights), key=lambda weight: -weight.ndim)
    sizes = [-(-weight.numel() // ALIGNED) * ALIGNED for weight in order]
    device = order[0].device if order else None
    pieces = torch.empty(sum(sizes), dtype=torch.bfloat16, device=device).split(sizes)
    copies = {}
    for weight, piece in zip(order, pieces, strict=True):
        copy = piece[: weight.numel()].view(weight.shape).copy_(weight.detach())
        copies[weight] = nn.Parameter(copy, requires_grad=weight.requires_grad)
    return {weight: copies[weight] for weight in dict.fromkeys(weights)}
