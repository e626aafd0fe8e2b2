"""Work beside a backward pass: gradients of weights, which nothing waits for until the step's end.

A product of a thousand tokens fills a part of a GPU. The gradient that goes on to the layer below is made on one CUDA
stream, and what it leaves behind for the weights on another, at the same time. Knows tensors and streams only.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

Grads = list[Tensor | None]


class _Side:
    def __init__(self, device: torch.device) -> None:
        self.stream = torch.cuda.Stream(device)
        self.held: list[Tensor] = []
        """What is read there must not be freed and written over meanwhile."""
        self.seen: set[int] = set()


_sides: dict[torch.device, _Side] = {}
_open: _Side | None = None
# Not a variable of a context or a thread: a backward pass runs in threads of torch's own.


@contextmanager
def work_beside(device: torch.device, worth_it: bool) -> Iterator[None]:
    """Inside, a backward pass may leave work to another stream; at the end it is waited for. One at a time."""
    global _open
    if not worth_it or device.type != "cuda":
        yield
        return
    assert _open is None
    _open = side = _sides.setdefault(device, _Side(device))
    try:
        yield
    finally:
        _open = None
        if side.held:  # a stream that has no part in a graph that is being captured cannot be waited for
            torch.cuda.current_stream(device).wait_stream(side.stream)
        side.held.clear()
        side.seen.clear()


def aside(weights: list[Tensor], run: Callable[[], Grads], *reads: Tensor) -> Grads:
    """The gradients of these weights, made beside what comes next where that is possible.

    Only what becomes a leaf's gradient as it is can be left alone: anything else would be used right away.
    """
    side = _open
    if side is None or not all(weight.is_leaf for weight in weights):
        return run()
    here = torch.cuda.current_stream(reads[0].device)
    keys = {weight.data_ptr() for weight in weights}
    if keys & side.seen:  # a weight that is used twice: its gradients are added up now
        here.wait_stream(side.stream)
        return run()
    side.seen |= keys
    side.held.extend(reads)
    side.stream.wait_stream(here)
    with torch.cuda.stream(side.stream):
        return run()
