"""Kernels that are compiled in parallel instead of being launched."""

from threading import current_thread
from typing import Any

import pytest
import torch

from polytask.kernels import compiling
from polytask.kernels.compiling import compiled_in_parallel, compiler, first_time


class Compiled:
    """Stands for what Triton's `run(..., warmup=True)` returns."""

    def __init__(self, loaded: list[str]) -> None:
        self.loaded = loaded

    @property
    def run(self) -> None:
        self.loaded.append(current_thread().name)


class Kernel:
    def __init__(self) -> None:
        self.compiled: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        self.loaded: list[str] = []

    def launch(self, *arguments: Any, **constants: Any) -> None:
        opened = compiler()
        assert opened is not None
        opened.add(self, self._run, arguments, constants)

    def _run(self, *arguments: Any, **options: Any) -> Compiled:
        self.compiled.append((arguments, options))
        return Compiled(self.loaded)


@pytest.fixture(autouse=True)
def no_gpu_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)


def test_a_kernel_is_compiled_once_for_arguments_that_triton_does_not_distinguish() -> None:
    kernel, tensor = Kernel(), torch.zeros(64)
    with compiled_in_parallel():
        kernel.launch(tensor, 32, BLOCK=128)
        kernel.launch(torch.ones(64), 48, BLOCK=128)
    ((_, options),) = kernel.compiled
    assert options == {"grid": None, "warmup": True, "BLOCK": 128}


@pytest.mark.parametrize(
    "other",
    [
        ((torch.zeros(64, dtype=torch.bfloat16), 32), {"BLOCK": 128}),
        ((torch.zeros(64)[1:], 32), {"BLOCK": 128}),
        ((torch.zeros(64), 33), {"BLOCK": 128}),
        ((torch.zeros(64), 1), {"BLOCK": 128}),
        ((torch.zeros(64), 32), {"BLOCK": 256}),
    ],
    ids=["dtype", "alignment", "divisible by 16", "one", "constant"],
)
def test_a_kernel_is_compiled_again_for_arguments_that_triton_distinguishes(
    other: tuple[tuple[Any, ...], dict[str, Any]],
) -> None:
    kernel = Kernel()
    with compiled_in_parallel():
        kernel.launch(torch.zeros(64), 32, BLOCK=128)
        kernel.launch(*other[0], **other[1])
    assert len(kernel.compiled) == 2


def test_kernels_are_loaded_in_threads_before_the_context_ends() -> None:
    kernels = [Kernel() for _ in range(5)]
    with compiled_in_parallel():
        for kernel in kernels:
            kernel.launch()
    assert all(name.startswith("compile-kernel") for kernel in kernels for name in kernel.loaded)
    assert all(len(kernel.loaded) == 1 for kernel in kernels)
    assert compiler() is None


def test_a_kernel_that_cannot_be_compiled_is_left_to_its_first_launch() -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("no such instruction")

    with compiled_in_parallel() as opened:
        opened.add(object(), fail, (), {})


def test_launches_launch_again_after_an_error() -> None:
    with pytest.raises(ValueError, match="in the pass"), compiled_in_parallel():
        raise ValueError("in the pass")
    assert compiler() is None


def test_the_first_time_is_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "_compiled", set())
    assert [first_time("a"), first_time("b"), first_time("a")] == [True, True, False]
