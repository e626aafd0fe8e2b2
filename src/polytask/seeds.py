"""Seeds derived from the run's seed and a name, so that a run has no hidden random state.

`derive(seed, "sampler", step)` gives the same integer on every machine and in every process, so a step can be
repeated, resumed or checked without saving the state of a generator. Knows nothing else of polytask.
"""

import hashlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

import numpy as np
import torch


def derive(seed: int, *names: str | int) -> int:
    """Return a 63-bit seed that depends only on `seed` and the names."""
    text = "\x1f".join([str(seed), *map(str, names)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def generator(seed: int, *names: str | int) -> np.random.Generator:
    """Return a numpy generator seeded with `derive(seed, *names)`."""
    return np.random.Generator(np.random.PCG64(derive(seed, *names)))


def seed_torch(seed: int, device: torch.device) -> None:
    """Seed the CPU and this device. (torch.manual_seed seeds devices of every kind, which takes 0.3 ms.)"""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.init()
        torch.cuda.default_generators[device.index or 0].manual_seed(seed)


class RandomState:
    """A snapshot of torch's random state, so that a second pass can draw the same dropout as the first."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.graph_states = _graph_states.get()
        self.state = self._get() if self.graph_states is None else self.graph_states.snapshot()

    @contextmanager
    def replay(self) -> Iterator[None]:
        """Inside the context, draw the numbers that followed the snapshot; afterwards, restore the current state."""
        if self.graph_states is not None:
            with self.graph_states.replay(self.state):
                yield
            return
        current = self._get()
        self._set(self.state)
        try:
            yield
        finally:
            self._set(current)

    def restore(self) -> None:
        """Go back to the snapshot."""
        self._set(self.state)

    def _get(self) -> torch.Tensor:
        return torch.cuda.get_rng_state(self.device) if self.device.type == "cuda" else torch.get_rng_state()

    def _set(self, state: torch.Tensor) -> None:
        if self.device.type == "cuda":
            torch.cuda.set_rng_state(state, self.device)
        else:
            torch.set_rng_state(state)


class GraphStates(Protocol):
    """What replaces snapshots of the random state while a step is captured (`kernels/graphs.py`)."""

    def snapshot(self) -> Any: ...

    def replay(self, state: Any) -> AbstractContextManager[None]: ...


_graph_states: ContextVar[GraphStates | None] = ContextVar("graph states", default=None)


@contextmanager
def drawing_from(states: GraphStates) -> Iterator[None]:
    """Inside the context, every `RandomState` is one of `states`."""
    token = _graph_states.set(states)
    try:
        yield
    finally:
        _graph_states.reset(token)
