"""Seeds derived from the run's seed and a name, so that a run has no hidden random state.

`derive(seed, "sampler", step)` gives the same integer on every machine and in every process, so a step can be
repeated, resumed or checked without saving the state of a generator. Knows nothing else of polytask.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch


def derive(seed: int, *names: str | int) -> int:
    """Return a 63-bit seed that depends only on `seed` and the names."""
    text = "\x1f".join([str(seed), *map(str, names)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def generator(seed: int, *names: str | int) -> np.random.Generator:
    """Return a numpy generator seeded with `derive(seed, *names)`."""
    return np.random.Generator(np.random.PCG64(derive(seed, *names)))


def generators(seed: int, *names: str | int, numbers: Sequence[int]) -> Iterator[np.random.Generator]:
    """Yield `generator(seed, *names, number)` for each number, in about half the time.

    They are one generator that is seeded again and again, so each must be used before the next.
    """
    if len(numbers) == 0:
        return
    bits: Any = np.random.PCG64(0)
    own = np.random.Generator(bits)
    for state, increment in _pcg64_states([derive(seed, *names, number) for number in numbers]):
        numbers_of_state = {"state": state, "inc": increment}
        bits.state = {"bit_generator": "PCG64", "state": numbers_of_state, "has_uint32": 0, "uinteger": 0}
        yield own


def _pcg64_states(derived: Sequence[int]) -> Iterator[tuple[int, int]]:
    """State and increment of `np.random.PCG64(seed)` for each of these seeds (O'Neill 2014)."""
    seeds_N = np.array(derived, dtype=np.uint64)
    words_8N = _generated_words(seeds_N).astype(np.uint64)
    words_4N = words_8N[::2] | words_8N[1::2] << np.uint64(32)
    for high, low, increment_high, increment_low in words_4N.T.tolist():
        increment = ((increment_high << 64 | increment_low) << 1 | 1) & 2**128 - 1
        state = increment + (high << 64 | low)
        yield (state * 0x2360ED051FC65DA44385DF649FCCF645 + increment) & 2**128 - 1, increment


def _generated_words(seeds_N: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint32]:
    """`np.random.SeedSequence(seed).generate_state(8)` of each seed: [8, N]. All operations are modulo 2^32."""
    pool_4N = np.zeros((4, len(seeds_N)), dtype=np.uint32)
    pool_4N[0], pool_4N[1] = seeds_N & np.uint64(2**32 - 1), seeds_N >> np.uint64(32)
    pool_4N = _hashed(pool_4N, *_POOL_CONSTANTS[:, :4])
    for source in range(4):
        others = [n for n in range(4) if n != source]
        constants = _POOL_CONSTANTS[:, 4 + 3 * source : 7 + 3 * source]
        mixed = pool_4N[others] * np.uint32(0xCA01F9DD) - _hashed(pool_4N[source], *constants) * np.uint32(0x4973F715)
        pool_4N[others] = mixed ^ mixed >> np.uint32(16)
    return _hashed(np.tile(pool_4N, (2, 1)), *_OUTPUT_CONSTANTS)


def _hashed(
    values: npt.NDArray[np.uint32], before: npt.NDArray[np.uint32], factors: npt.NDArray[np.uint32]
) -> npt.NDArray[np.uint32]:
    values = (values ^ before) * factors
    return values ^ values >> np.uint32(16)


def _hash_constants(start: int, factor: int, count: int) -> npt.NDArray[np.uint32]:
    """[2, count, 1]: what the values of each hash are combined with before, and multiplied with."""
    constants = np.array([start * factor**power % 2**32 for power in range(count + 1)], dtype=np.uint32)
    return np.stack([constants[:-1], constants[1:]])[:, :, None]


_POOL_CONSTANTS = _hash_constants(0x43B0D7E5, 0x931E8875, 16)
_OUTPUT_CONSTANTS = _hash_constants(0x8B51F9DD, 0x58F38DED, 8)


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


class CommonRandom:
    """Random numbers that are the same in all processes of a run: those that one process on its own would draw.

    On a GPU they are those of the CPU too, from which some policies draw.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._states = self._current()

    def seed(self, seed: int) -> None:
        """Start again from this seed. Other random draws of this process are not affected."""
        with _replayed(self._current()):
            seed_torch(seed, self.device)
            self._states = self._current()

    def normal(self, rows: int, like: torch.Tensor) -> torch.Tensor:
        """Draw standard normal numbers for this number of rows like those of `like`."""
        with self.drawn():
            return torch.randn(rows, *like.shape[1:], dtype=like.dtype, device=like.device)

    @contextmanager
    def drawn(self) -> Iterator[None]:
        """Inside the context, torch's random numbers are the next of these."""
        with _replayed(self._states):
            yield
            self._states = self._current()

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return what another process needs to draw the same numbers from here."""
        return {str(number): state.state for number, state in enumerate(self._states)}

    def load_state_dict(self, states: Mapping[str, torch.Tensor]) -> None:
        """Go on from what `state_dict` returned in another process."""
        for number, state in enumerate(self._states):
            state.state = states[str(number)]

    def _current(self) -> list[RandomState]:
        both = self.device, torch.device("cpu")
        return [RandomState(device) for device in (both if self.device.type == "cuda" else both[:1])]


@contextmanager
def _replayed(states: Iterable[RandomState]) -> Iterator[None]:
    """Inside the context, draw the numbers that followed each of the snapshots."""
    with ExitStack() as stack:
        for state in states:
            stack.enter_context(state.replay())
        yield


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
