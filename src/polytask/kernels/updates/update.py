"""The interface of updates that can be captured in a CUDA graph, and the table of addresses that graphs read."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from polytask.regularizers.base import Pull

COLUMNS = 14
"""Of a table's row: the addresses of weight, gradient, first and second state tensor (0: none), bf16 copy (0: none) and
step; the number of elements, the parameter group, whether the gradient is in bf16, whether elements can be loaded four
at a time, and whether the weight is a matrix; of its pull, the addresses of centre (0: none) and factor (0: none), and
the bits of the strength (0: no pull)."""


class Learned(NamedTuple):
    """A tensor that a step updates."""

    weight: Tensor
    gradient: Tensor
    """In float32 or bf16."""
    copy: Tensor | None = None
    """A bf16 copy of the weight, which is updated too."""
    pull: Pull | None = None
    """A penalty whose gradient `Update.pull` adds to `gradient`."""


class Table:
    """The addresses of a step's tensors. A graph reads the table at its address, so keep the table with the graph."""

    def __init__(self, rows: int, device: torch.device) -> None:
        # From pinned memory the copy is asynchronous.
        self._host = torch.zeros(rows, COLUMNS, dtype=torch.int64, pin_memory=device.type == "cuda")
        self.rows = torch.zeros(rows, COLUMNS, dtype=torch.int64, device=device)

    def write(self, rows: list[list[int]]) -> None:
        self._host[: len(rows)] = torch.tensor(rows)

    def send(self) -> None:
        """Copy the table to the device. Call it once: the asynchronous copy may read the host's memory much later."""
        self.rows.copy_(self._host, non_blocking=True)


class Update(ABC):
    """Updates an optimizer's parameters as its own `step` would, but reads what changes from step to step on the
    device: learning rates, step counts, the divisor of the gradients, and whether to skip the update.

    The state is the optimizer's own, so its `step` and an `Update` can take turns.
    """

    state_names: tuple[str, ...] = ("exp_avg", "exp_avg_sq")
    """The state tensors of each parameter; they have its shape and start at zero."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer
        self.group_of = {p: k for k, group in enumerate(optimizer.param_groups) for p in group["params"]}
        """Parameter -> the index of its group."""
        self.device: torch.device = next(iter(self.group_of)).device

    def table(self) -> Table:
        """A table with room for all tensors. For a graph, create it before the capture and send it afterwards."""
        return Table(len(self.group_of), self.device)

    @abstractmethod
    def step(
        self,
        learned: Sequence[Learned],
        rates: Tensor,
        found_inf: Tensor,
        divisor: Tensor | None = None,
        table: Table | None = None,
    ) -> None:
        """One step with a learning rate per group and gradients / `divisor`; skipped if `found_inf` is not 0.

        Other parameters are not updated, not decayed and not counted. A captured step needs a table; other steps create
        their own.
        """

    @torch.no_grad()
    def pull(self, learned: Sequence[Learned], table: Table | None = None) -> tuple[Tensor, Tensor]:
        """Add the gradients of the pulls to the gradients, which must be contiguous, in place.

        Returns the sum of the pulls' penalties, and the norm of all gradients with what was added.
        """
        penalty = torch.zeros((), device=self.device)
        for one in learned:
            if one.pull is not None:
                change = one.weight.detach() if one.pull.centre is None else one.weight - one.pull.centre
                slope = one.pull.strength * (change if one.pull.factor is None else one.pull.factor * change)
                penalty = penalty + (slope * change).sum() / 2
                one.gradient.add_(slope)
        return penalty, norm_of([one.gradient for one in learned])

    def state_of(self, weight: Tensor) -> dict[str, Tensor]:
        """Return the optimizer's state of a parameter, with its step count on the device; create it if it is missing.

        An optimizer that reads step counts in Python keeps them on the CPU, and so do its checkpoints.
        """
        state: dict[str, Tensor] = self.optimizer.state[weight]
        if not state:
            state["step"] = torch.zeros((), device=self.device)
            state |= {name: torch.zeros_like(weight) for name in self.state_names}
        if state["step"].device != self.device:
            state["step"] = state["step"].to(self.device)
        return state


def declared(thing: object, name: str) -> bool:
    """Whether the object's own class sets `name = True`.

    A base class that sets it does not count: the subclass may override what the declaration is about.
    """
    return vars(type(thing)).get(name) is True


def norm_of(tensors: list[Tensor]) -> Tensor:
    """The norm of all tensors as one vector, computed in float32."""
    by_dtype: dict[torch.dtype, list[Tensor]] = {}  # a list of several dtypes would need one launch per tensor
    for tensor in tensors:
        by_dtype.setdefault(tensor.dtype, []).append(tensor)
    norms = [norm for same in by_dtype.values() for norm in torch._foreach_norm(same, 2, dtype=torch.float32)]
    whole: Tensor = torch.linalg.vector_norm(torch.stack(norms))
    return whole
