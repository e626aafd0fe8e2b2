"""bf16 copies of the weights of linear maps.

Under autocast each weight is cast by a kernel of its own, and so is its gradient: hundreds of launches per step. Here a
few kernels cast all of them, or the optimizer's update does, with the same values.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

ALIGNMENT = 64  # elements, so that products can load every copy with wide accesses


class HalfWeights:
    """Copies that replace the weights of every linear map of a module; the optimizer keeps the float32 weights.

    Linear maps are `nn.Linear` modules, and the matrices in parameter lists, which belong to single tasks.
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
    def swapped_in(self, cast: bool = True) -> Iterator[None]:
        """Makes the module compute with the copies. With `cast`, the trainable ones are cast first."""
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
        """Casts the weights that were changed by anything but an update that writes the copies too.

        Every in-place operation of torch, such as loading a checkpoint, increments a tensor's version; graphs and our
        own kernels do not. Fused optimizers do not either: call `forget` after their step. Writes through `.data` are
        not noticed.
        """
        marks = self._marks()
        if marks != self._seen:
            changed = zip(self.copies, marks, self._seen, strict=True)
            self._cast([full for full, now, before in changed if now != before])
            self._seen = [*marks]

    def forget(self) -> None:
        """Marks every copy as outdated."""
        self._seen = [None] * len(self.copies)

    def _marks(self) -> list[tuple[int, int]]:
        return [(full._version, full.data_ptr()) for full in self.copies]

    @torch.no_grad()
    def _cast(self, weights: list[nn.Parameter]) -> None:
        torch._foreach_copy_([self.copies[full] for full in weights], tuple(weights))

    def move_gradients(self) -> None:
        """Moves the gradients of the copies to the weights, in float32; adds them to gradients that are there."""
        moved = [(full, half, half.grad) for full, half in self.copies.items() if half.grad is not None]
        gradients = [torch.empty_like(full) for full, _, _ in moved]
        torch._foreach_copy_(gradients, [gradient for _, _, gradient in moved])
        for (full, half, _), gradient in zip(moved, gradients, strict=True):
            full.grad = gradient if full.grad is None else full.grad + gradient
            half.grad = None

    def drop_gradients(self) -> None:
        for half in self.copies.values():
            half.grad = None


def _copied(weights: list[nn.Parameter]) -> dict[nn.Parameter, nn.Parameter]:
    """The copies in one block of memory, matrices before vectors, so that adjacent maps can be one product without a
    copy (one_product.py)."""
    order = sorted(dict.fromkeys(weights), key=lambda weight: -weight.ndim)
    sizes = [-(-weight.numel() // ALIGNMENT) * ALIGNMENT for weight in order]
    device = order[0].device if order else None
    pieces = torch.empty(sum(sizes), dtype=torch.bfloat16, device=device).split(sizes)
    copies = {}
    for weight, piece in zip(order, pieces, strict=True):
        copy = piece[: weight.numel()].view(weight.shape).copy_(weight.detach())
        copies[weight] = nn.Parameter(copy, requires_grad=weight.requires_grad)
    return {weight: copies[weight] for weight in dict.fromkeys(weights)}
