"""Work beside other work, in steps so small that they leave a GPU half empty. Knows tensors and streams only.

A product of a thousand tokens fills a part of a GPU. In a backward pass, the gradient that goes on to the layer below
is made on one CUDA stream, and what it leaves behind for the weights on another, at the same time: nothing waits for it
until the step's end. A branch beside a layer has a stream of its own, too, and so has its backward pass.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

Grads = list[Tensor | None]


class _Side:
    def __init__(self, device: torch.device) -> None:
        self.stream = torch.cuda.Stream(device)
        self.branch = torch.cuda.Stream(device)
        self.held: list[Tensor] = []
        """What is read there must not be freed and written over meanwhile."""
        self.seen: set[int] = set()
        self.branched = False


_sides: dict[torch.device, _Side] = {}
_open: _Side | None = None
# Not a variable of a context or a thread: a backward pass runs in threads of torch's own.


@contextmanager
def side_stream(device: torch.device, worth_it: bool) -> Iterator[None]:
    """Inside, a pass forward and backward may leave work to other streams; at the end it is waited for."""
    global _open
    if not worth_it or device.type != "cuda":
        yield
        return
    assert _open is None
    if device not in _sides:
        _sides[device] = _Side(device)
    _open = side = _sides[device]
    try:
        yield
    finally:
        _open = None
        # A stream that has no part in a graph that is being captured cannot be waited for.
        used = [stream for stream, was in ((side.stream, side.seen), (side.branch, side.branched)) if was]
        side.held, side.seen, side.branched = [], set(), False
        for stream in used:
            torch.cuda.current_stream(device).wait_stream(stream)


def defer_gradients(weights: list[Tensor], run: Callable[[], Grads], *reads: Tensor) -> Grads:
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


class Branch:
    """Work of a pass forward that begins when `x` is there and is wanted later, at `joined`."""

    def __init__(self, x: Tensor, worth_it: bool) -> None:
        # In a graph only: there, who uses which memory when is settled once, by an allocator that knows the streams.
        self.here = worth_it and _open is not None and torch.cuda.is_current_stream_capturing()
        self.x = x

    def run(self, work: Callable[[], Tensor | None]) -> Tensor | None:
        if _open is None or not self.here:
            return work()
        _open.branched = True
        _open.branch.wait_stream(torch.cuda.current_stream(self.x.device))
        with torch.cuda.stream(_open.branch):
            return work()

    def joined(self) -> None:
        if _open is not None and self.here:
            torch.cuda.current_stream(self.x.device).wait_stream(_open.branch)
