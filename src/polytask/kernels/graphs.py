"""Functions captured as CUDA graphs: the first call with given shapes runs normally, the second is captured.

A GPU computes a small step in less time than the CPU needs to launch its thousand kernels. A graph is launched once and
runs the same kernels on other data, which is copied to the same addresses. On a CPU every call runs normally.
"""

import gc
import logging
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from polytask import seeds
from polytask.kernels.static_tensors import StaticTensors
from polytask.kernels.updates import Table
from polytask.processes import ALONE, Processes

log = logging.getLogger(__name__)
MAX_GRAPHS = 256


class Body(Protocol):
    """What is captured: computes a result from static tensors, and nothing else that changes from call to call."""

    def __call__(self, inputs: list[Tensor], table: Table | None, capturing: bool) -> Tensor: ...


@dataclass
class _Entry:
    """A function for inputs of given shapes."""

    inputs: StaticTensors
    graph: Any = None
    result: Tensor | None = None
    table: Table | None = None
    second_passes: int = 0
    """How many passes of the function draw the random numbers of its first pass again."""


class Graphs:
    """The graphs of one device. They share their memory, so they must be replayed one after another."""

    def __init__(
        self,
        device: torch.device,
        new_table: Callable[[], Table | None] = lambda: None,
        processes: Processes = ALONE,
    ) -> None:
        self.device = device
        self.new_table = new_table
        self.processes = processes
        """Those that capture and replay the same functions at the same time: the graphs exchange tensors."""
        self.reason: str | None = None
        """Why capturing failed, if it did; the functions then run normally."""
        self.entries: dict[Hashable, _Entry] = {}
        self._pool = self._new_pool()
        self._states = SecondPassStates(device)

    def run(self, key: Hashable, inputs: list[Tensor], body: Body) -> Tensor:
        """The result of `body` for these inputs. Equal keys mean equal shapes and the same operations."""
        entry = self.entries.get(key)
        known = entry is not None
        if entry is None:
            entry = self.entries[key] = _Entry(StaticTensors(inputs, self.device))
        entry.inputs.fill(inputs)
        if known and entry.graph is None and self.reason is None and len(self.entries) <= MAX_GRAPHS:
            self._capture(entry, body)
        if entry.graph is None:
            with self._states.open() as states:
                result = body(entry.inputs.tensors, None, False)
            entry.second_passes = states.used
            return result
        self._states.restart(entry.second_passes)
        entry.graph.replay()
        assert entry.result is not None
        return entry.result

    def clear(self) -> None:
        """Forgets all graphs; functions with the same keys are captured anew."""
        self.entries.clear()
        # No graph may join a pool whose graphs are all gone, and it lives as long as a tensor has memory of it.
        self._pool = self._new_pool()

    def _new_pool(self) -> Any:
        return torch.cuda.graph_pool_handle() if self.device.type == "cuda" else None

    def _capture(self, entry: _Entry, body: Body) -> None:
        graph = self._new_graph()
        if graph is None:
            return
        table = self.new_table()
        random = seeds.RandomState(self.device)
        self._states.register(graph, entry.second_passes)
        failure = ""
        try:
            with _without_garbage_collection(), self._recording(graph), self._states.open(capturing=True):
                entry.result = body(entry.inputs.tensors, table, True)
            entry.graph, entry.table = graph, table
            if table is not None:
                table.send()
        except (RuntimeError, ValueError, IndexError) as error:
            failure = str(error).splitlines()[0]
        if self.processes.any(bool(failure)):  # if one process cannot replay it, none does
            self._stop(failure or "another process could not capture them")
        random.restore()  # capturing has advanced the generator

    def _new_graph(self) -> Any:
        return torch.cuda.CUDAGraph() if self.device.type == "cuda" else None

    def _recording(self, graph: Any) -> Any:
        # A thread of NCCL queries events meanwhile, which would end a capture that watches all threads.
        watched = "thread_local" if self.processes.several else "global"
        return torch.cuda.graph(graph, pool=self._pool, capture_error_mode=watched)

    def _stop(self, reason: str) -> None:
        self.reason = reason
        log.warning("steps are not captured: %s", reason)
        # The generator is still in capture mode, and the graphs captured before would use its old state.
        self._states.reset()
        for entry in self.entries.values():
            entry.graph = None


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Collecting the graphs of a session that has ended would free their memory, which ends a capture."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class SecondPassStates:
    """The random states of passes that draw the same dropout as the first pass of a captured function.

    A graph cannot set the generator back, but its passes may draw from several states of the generator. Before each
    replay, all of them start at the same seed and offset, so only the function's first pass can be drawn again.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.used = 0
        self.capturing = False
        self._snapshots = 0
        self._states: list[Any] = []

    @property
    def _generator(self) -> Any:
        if self.device.type != "cuda":
            return torch.default_generator
        torch.cuda.init()
        return torch.cuda.default_generators[self.device.index or 0]

    @contextmanager
    def open(self, capturing: bool = False) -> Iterator["SecondPassStates"]:
        """Inside the context, a function is captured, or runs normally and its second passes are counted."""
        self.used, self.capturing, self._snapshots = 0, capturing, 0
        with seeds.drawing_from(self):
            yield self

    def register(self, graph: Any, count: int) -> None:
        while len(self._states) < count:
            self._states.append(self._generator.clone_state())
        for state in self._states[:count]:
            graph.register_generator_state(state)

    def restart(self, count: int) -> None:
        """Sets the states of `count` second passes to the generator's seed and offset."""
        if count == 0:
            return
        generator = self._generator
        start = generator.get_state()
        for state in self._states[:count]:
            state.set_state(start)

    def snapshot(self) -> Any:
        self._snapshots += 1
        return self._snapshots if self.capturing else self._generator.get_state()

    @contextmanager
    def replay(self, state: Any) -> Iterator[None]:
        self.used += 1
        generator = self._generator
        if not self.capturing:
            current = generator.get_state()
            generator.set_state(state)
            try:
                yield
            finally:
                generator.set_state(current)
            return
        if state != 1:
            raise RuntimeError("only the first pass of a captured step can be repeated with the same dropout")
        current = generator.graphsafe_get_state()
        generator.graphsafe_set_state(self._states[self.used - 1])
        try:
            yield
        finally:
            generator.graphsafe_set_state(current)

    def reset(self) -> None:
        self._states = []
        if self.device.type == "cuda":
            generator = self._generator
            generator.graphsafe_set_state(generator.clone_state())
