"""A second CUDA stream for work that can overlap, in steps so small that they leave a part of a GPU idle.

A product of a thousand tokens fills only a part of a GPU. In a backward pass, the gradient for the layer below is
computed on the main stream and the gradients of the weights on the side stream, at the same time: nothing waits for
them until the end of the step. A branch parallel to a layer runs on a third stream, and so does its backward pass.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

Grads = list[Tensor | None]


class SideStream:
    """The side streams of one device. A pass that runs inside `open` may leave work to them."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.is_open = False
        on_cuda = device.type == "cuda"
        self._stream = torch.cuda.Stream(device) if on_cuda else None
        self._branch = torch.cuda.Stream(device) if on_cuda else None
        self._held: list[Tensor] = []
        """Tensors that are read on the side stream: their memory must not be reused before it is done."""
        self._seen: set[int] = set()
        """Weights whose gradients are computed there."""
        self._branched = False

    @contextmanager
    def open(self, worth_it: bool) -> Iterator[None]:
        """Lets the forward and backward pass inside use the side streams; waits for them at the end."""
        if not worth_it or self._stream is None:
            yield
            return
        assert not self.is_open
        self.is_open = True
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)
            self.is_open = False
            self._wait()

    def _wait(self) -> None:
        # While a graph is captured, a stream that has no part in the graph cannot be waited for.
        used = [stream for stream, was in ((self._stream, self._seen), (self._branch, self._branched)) if was]
        self._held, self._seen, self._branched = [], set(), False
        for stream in used:
            assert stream is not None
            torch.cuda.current_stream(self.device).wait_stream(stream)

    def run_gradients(self, weights: list[Tensor], run: Callable[[], Grads], reads: tuple[Tensor, ...]) -> Grads:
        assert self._stream is not None
        main = torch.cuda.current_stream(reads[0].device)
        keys = {weight.data_ptr() for weight in weights}
        if keys & self._seen:  # a weight that is used twice: its gradients are summed right away
            main.wait_stream(self._stream)
            return run()
        self._seen |= keys
        self._held.extend(reads)
        self._stream.wait_stream(main)
        with torch.cuda.stream(self._stream):
            return run()

    def run_branch(self, work: Callable[[], Tensor | None]) -> Tensor | None:
        assert self._branch is not None
        self._branched = True
        self._branch.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self._branch):
            return work()

    def wait_for_branch(self) -> None:
        assert self._branch is not None
        torch.cuda.current_stream(self.device).wait_stream(self._branch)


_current: ContextVar[SideStream | None] = ContextVar("current side stream", default=None)


def current_side_stream() -> SideStream | None:
    """The side stream of the pass that is running. An autograd function asks in its forward pass and keeps the answer,
    because its backward pass runs in a thread of torch's own."""
    return _current.get()


def defer_gradients(side: SideStream | None, weights: list[Tensor], run: Callable[[], Grads], *reads: Tensor) -> Grads:
    """The gradients of these weights, computed on the side stream where that is possible.

    Only what becomes the gradient of a leaf as it is can be deferred: anything else would be used right away.
    """
    if side is None or not side.is_open or not all(weight.is_leaf for weight in weights):
        return run()
    return side.run_gradients(weights, run, reads)


class Branch:
    """Work of a forward pass that starts now and whose result is needed later, after `join`."""

    def __init__(self, worth_it: bool) -> None:
        side = current_side_stream() if worth_it else None
        # Only while a graph is captured: its allocator decides once which stream uses which memory when.
        self.side = side if side is not None and torch.cuda.is_current_stream_capturing() else None

    def run(self, work: Callable[[], Tensor | None]) -> Tensor | None:
        return work() if self.side is None else self.side.run_branch(work)

    def join(self) -> None:
        if self.side is not None:
            self.side.wait_for_branch()
