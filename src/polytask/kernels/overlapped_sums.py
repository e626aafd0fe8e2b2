"""Sums of gradients over processes that are sent while the backward pass goes on: a faster `Processes.sum_gradients`.

The gradients of a layer are complete long before those of the layers below it. They are sent in groups of parameters,
each as soon as all its gradients are complete, but always in the same order, because every process must send the same
group at the same time. Groups that stay incomplete, because this process has no examples of a task, are sent at the
end. `tests/kernels/test_overlapped_sums.py` compares it with the definition.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from polytask.processes import Processes

GROUP_BYTES = 2**24
"""The size from which a group is complete: small messages waste time, large ones are sent late."""


class _Group:
    """Parameters whose gradients are sent as one tensor."""

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self.parameters = parameters
        self.incomplete = set(parameters)
        self._wait: Callable[[], None] | None = None

    def send(self, processes: Processes) -> None:
        """Start to sum the gradients. A parameter without a gradient is sent as zeros, and as one that has none."""
        sizes, first = [p.numel() for p in self.parameters], self.parameters[0]
        flat = torch.zeros(sum(sizes) + len(sizes), dtype=first.dtype, device=first.device)
        *self.pieces, self.given = flat.split([*sizes, len(sizes)])
        for number, (parameter, piece) in enumerate(zip(self.parameters, self.pieces, strict=True)):
            if parameter.grad is not None:
                piece.copy_(parameter.grad.flatten())
                self.given[number] = 1
        self._wait = processes.start_adding_up(flat)

    def receive(self) -> None:
        """Replace the gradients by their sums."""
        assert self._wait is not None
        self._wait()
        for parameter, piece, known in zip(self.parameters, self.pieces, self.given.tolist(), strict=True):
            parameter.grad = piece.view_as(parameter) if known else None


@contextmanager
def sums_of_gradients(parameters: Sequence[nn.Parameter], processes: Processes) -> Iterator[None]:
    """Inside the context, a backward pass computes gradients; afterwards they are the sums over all processes.

    `parameters` are the same in every process, best in the order in which their gradients are computed. Each parameter
    may get its gradient in one backward pass only; earlier passes may have computed a part of it.
    """
    if not processes.several:
        yield
        return
    groups = [_Group(group) for group in _groups([p for p in parameters if p.requires_grad])]
    group_of = {parameter: group for group in groups for parameter in group.parameters}
    unsent = list(reversed(groups))

    def note(parameter: Tensor) -> None:
        assert isinstance(parameter, nn.Parameter)
        group_of[parameter].incomplete.discard(parameter)
        while unsent and not unsent[-1].incomplete:
            unsent.pop().send(processes)

    hooks = [parameter.register_post_accumulate_grad_hook(note) for parameter in group_of]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
    while unsent:
        unsent.pop().send(processes)
    for group in groups:
        group.receive()


def _groups(parameters: Sequence[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    """Divide the parameters into groups of about `GROUP_BYTES`."""
    group: list[nn.Parameter] = []
    size = 0
    for parameter in parameters:
        group.append(parameter)
        size += parameter.numel() * parameter.element_size()
        if size >= GROUP_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group
