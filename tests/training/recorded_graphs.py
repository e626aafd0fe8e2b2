"""CUDA graphs imitated on the CPU: the operations of a function are recorded once and run again without its Python.

Like a graph, a recording reads and writes the tensors that it was recorded with. Numbers that Python computed are
constants of it, and an operation whose result Python needs is refused, because it would wait for the device.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from polytask.kernels.graphs import Graphs, SecondPassStates

READS_A_VALUE = {
    *("_local_scalar_dense", "nonzero", "masked_select", "_unique2", "unique_dim", "unique_consecutive", "is_nonzero"),
    *("equal", "_linalg_eigh", "linalg_eig"),
}


class Recording(TorchDispatchMode):
    """The operations of a function, in order."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations: list[Callable[[], None]] = []
        self._before: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}
        """Memory that the operations change, as it is and as it was."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        if name in READS_A_VALUE or (name == "index" and any(_is_mask(one) for one in tree_leaves(args[1:]))):
            raise RuntimeError(f"operation not permitted when stream is capturing: {name}")
        storages = [one.untyped_storage() for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)]
        inputs = {storage.data_ptr() for storage in storages}
        if name.endswith("_") or "out" in kwargs:
            for storage in storages:
                if storage.data_ptr() not in self._before:
                    self._before[storage.data_ptr()] = storage, storage.clone()
        result = func(*args, **kwargs)
        outputs = [one for one in tree_leaves(result) if isinstance(one, Tensor)]
        new = [n for n, one in enumerate(outputs) if one.untyped_storage().data_ptr() not in inputs]
        in_place = name.endswith("_") or "out" in kwargs
        if new or in_place:
            self.operations.append(lambda: _run_again(func, args, kwargs, outputs, new))
        return result

    def undo(self) -> None:
        """A graph does not run while it is captured."""
        for storage, before in self._before.values():
            storage.copy_(before)
        self._before.clear()

    def replay(self) -> None:
        with torch.no_grad():
            for operation in self.operations:
                operation()

    def register_generator_state(self, state: Any) -> None:
        pass


def _is_mask(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dtype in (torch.bool, torch.uint8)


def _run_again(func: Any, args: Any, kwargs: Any, outputs: list[Tensor], new: list[int]) -> None:
    returned = func(*args, **kwargs)
    if func.namespace == "c10d":  # what processes exchange; a graph waits for it before it goes on
        returned[-1].wait()
    result = [one for one in tree_leaves(returned) if isinstance(one, Tensor)]
    for n in new:
        if outputs[n].numel():
            outputs[n].copy_(result[n])


class RecordedStates(SecondPassStates):
    """Second passes go back to the random state that the recording started with."""

    recording: Recording | None = None

    @contextmanager
    def replay(self, state: Any) -> Iterator[None]:
        recording = self.recording
        if not self.capturing or recording is None:
            with super().replay(state):
                yield
            return
        assert state == 1, "only the first pass of a captured step can be repeated with the same dropout"
        saved: list[Tensor] = []

        def back() -> None:
            saved.append(torch.get_rng_state())
            torch.set_rng_state(self.start)

        def forth() -> None:
            torch.set_rng_state(saved.pop())

        recording.operations.append(back)
        back()
        try:
            yield
        finally:
            forth()
            recording.operations.append(forth)

    def restart(self, count: int) -> None:
        self.start = torch.get_rng_state()

    def register(self, graph: Any, count: int) -> None:
        self.restart(count)


class RecordedGraphs(Graphs):
    """Graphs of the CPU."""

    def __init__(self, graphs: Graphs) -> None:
        super().__init__(graphs.device, graphs.new_table, graphs.processes)
        self._states = RecordedStates(graphs.device)

    def _new_graph(self) -> Recording:
        return Recording()

    @contextmanager
    def _recording(self, graph: Any) -> Iterator[None]:
        self._states.recording = graph  # type: ignore[attr-defined]
        random = torch.get_rng_state()
        try:
            with graph:
                yield
        finally:
            torch.set_rng_state(random)
            graph.undo()
