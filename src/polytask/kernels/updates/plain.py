"""The update of any optimizer in plain torch operations: its definition, with tensors for rates and step counts."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from polytask.kernels.updates.update import Learned, Table, Update
from polytask.optim.adamw import AdamW
from polytask.optim.base import ListOptimizer, TensorLists


class PlainUpdate(Update):
    """Slow, because a skipped update needs the old values; for devices without Triton, and for tests."""

    def __init__(self, optimizer: torch.optim.Optimizer, state_names: tuple[str, ...]) -> None:
        super().__init__(optimizer)
        self.state_names = state_names

    @torch.no_grad()
    def step(
        self,
        learned: Sequence[Learned],
        rates: Tensor,
        found_inf: Tensor,
        divisor: Tensor | None = None,
        table: Table | None = None,
    ) -> None:
        skip = found_inf != 0
        for k, rate in enumerate(rates.unbind()):
            group = [one for one in learned if self.group_of[one.weight] == k]
            if group:
                self._update(group, {**self.optimizer.param_groups[k], "lr": rate}, skip, divisor)

    def _update(self, group: list[Learned], options: dict[str, Any], skip: Tensor, divisor: Tensor | None) -> None:
        states = [self.state_of(one.weight) for one in group]
        old = {name: [state[name] for state in states] for name in ("step", *self.state_names)}
        old["weight"] = [one.weight for one in group]
        new = {name: [tensor.clone() for tensor in tensors] for name, tensors in old.items()}
        torch._foreach_add_(new["step"], 1)
        grads = [one.gradient.float() if divisor is None else one.gradient.float() / divisor for one in group]
        state = {name: new[name] for name in self.state_names}
        # In float64: 1 - beta^t in float32 has an error in its fifth digit.
        lists = TensorLists(new["weight"], grads, state, [step.double() for step in new["step"]])
        update: Callable[..., None] = AdamW.update
        if isinstance(self.optimizer, ListOptimizer):
            update = type(self.optimizer).update
        update(self.optimizer, lists, {"correction": "exact", **options})
        for name, tensors in old.items():
            for kept, changed in zip(tensors, new[name], strict=True):
                kept.copy_(torch.where(skip, kept, changed))
        for one in group:
            if one.copy is not None:
                one.copy.copy_(one.weight)
