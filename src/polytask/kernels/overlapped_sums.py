"""Sums of gradients over processes that are sent while the backward pass goes on: a faster `Processes.sum_gradients`.

The gradients of a layer are complete long before those of the layers below it. They are sent in groups of parameters,
each as soon as all its gradients are complete, but always in the same order, because every process must send the same
group at the same time. Groups that stay incomplete, because this process has no examples of a task, are sent at the
end. `tests/kernels/test_overlapped_sums.py` compares it with the definition.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from polytask.processes import Processes

GROUP_BYTES = 2**24
"""The size from which a group is complete: small messages waste time, large ones are sent late."""
Copies = Mapping[nn.Parameter, nn.Parameter]
"""Half-precision copies of parameters, which get their gradients (`HalfWeights`)."""


class _Group:
    """Parameters whose gradients are sent as one tensor."""

    def __init__(self, parameters: Sequence[nn.Parameter], copies: Copies) -> None:
        self.parameters, self.copies = parameters, copies
        self.incomplete = {copies.get(parameter, parameter) for parameter in parameters}
        self._wait: Callable[[], None] | None = None

    def send(self, processes: Processes, flags: bool) -> None:
        """Start to sum the gradients in the parameters' precision; one that is missing is sent as zeros.

        With flags, it is also sent which parameters have a gradient.
        """
        sizes, first = [p.numel() for p in self.parameters], self.parameters[0]
        num_flags = len(sizes) if flags else 0
        flat = torch.zeros(sum(sizes) + num_flags, dtype=first.dtype, device=first.device)
        *self.pieces, self.flags = flat.split([*sizes, num_flags])
        filled, gradients = [], []
        for number, (parameter, piece) in enumerate(zip(self.parameters, self.pieces, strict=True)):
            gradient = self._take(parameter)
            if gradient is not None:
                filled.append(piece)
                gradients.append(gradient.flatten())
                if flags:
                    self.flags[number] = 1
        if filled:
            torch._foreach_copy_(filled, gradients)  # one call costs less than one for each
        self._wait = processes.start_adding_up(flat)

    def _take(self, parameter: nn.Parameter) -> Tensor | None:
        """The gradient, which may be that of the copy, or the sum of both; the copy has none afterwards."""
        copy = self.copies.get(parameter)
        if copy is None or copy.grad is None:
            return parameter.grad
        gradient, copy.grad = copy.grad, None
        return gradient if parameter.grad is None else parameter.grad + gradient

    def receive(self, reached: Collection[nn.Parameter] | None) -> list[nn.Parameter]:
        """Replace the gradients by their sums, and return the parameters that have one in some process."""
        assert self._wait is not None
        self._wait()
        if reached is None:
            reached = {p for p, flag in zip(self.parameters, self.flags.tolist(), strict=True) if flag}
        for parameter, piece in zip(self.parameters, self.pieces, strict=True):
            parameter.grad = piece.view_as(parameter) if parameter in reached else None
        return [parameter for parameter in self.parameters if parameter in reached]


@contextmanager
def sums_of_gradients(
    parameters: Sequence[nn.Parameter],
    processes: Processes,
    copies: Copies | None = None,
    reached: Collection[nn.Parameter] | None = None,
    overlap: bool = True,
) -> Iterator[set[nn.Parameter]]:
    """Inside the context, a backward pass computes gradients; afterwards they are the sums over all processes.

    Args:
        parameters: The same in every process, best in the order in which their gradients are computed. Each may get its
            gradient in one backward pass only; earlier passes may have computed a part of it.
        processes: With whom the sums are computed.
        copies: Half-precision copies of some parameters. Their gradients are summed in the parameter's precision, and
            become the parameter's.
        reached: The parameters that have a gradient in some process, if that is known; the others get none. Otherwise
            the processes tell each other, and wait for the device to know it.
        overlap: Whether gradients are sent as soon as they are complete. Without it all are sent at the end, for
            parameters whose copy and which themselves get a gradient.

    Yields:
        A set that has these parameters after the context.
    """
    found: set[nn.Parameter] = set()
    if not processes.several:
        yield found
        return
    copies = copies or {}
    groups = [_Group(group, copies) for group in _groups([p for p in parameters if p.requires_grad])]
    group_of = {copies.get(parameter, parameter): group for group in groups for parameter in group.parameters}
    unsent = list(reversed(groups))

    def note(leaf: Tensor) -> None:
        assert isinstance(leaf, nn.Parameter)
        group_of[leaf].incomplete.discard(leaf)
        while unsent and not unsent[-1].incomplete:
            unsent.pop().send(processes, reached is None)

    hooks = [leaf.register_post_accumulate_grad_hook(note) for leaf in group_of] if overlap else []
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()
    while unsent:
        unsent.pop().send(processes, reached is None)
    for group in groups:
        found.update(group.receive(reached))


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
