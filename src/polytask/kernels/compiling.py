"""Compiles the kernels of a pass in parallel.

Triton compiles a kernel when it is first launched, so a first step would compile its twenty kernels one after another,
which takes seconds. Inside `compiled_in_parallel` a launch only asks for the kernel; threads compile and load it. Most
of the time is spent in Triton's passes, the assembler and the C compiler, which do not hold the interpreter's lock.
"""

import logging
import os
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

log = logging.getLogger(__name__)
MOST_THREADS = 16
_open: "KernelCompiler | None" = None
_compiled: set[Hashable] = set()


class KernelCompiler:
    """Compiles each kernel that is asked for once."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self.pool = pool
        self.jobs: dict[Hashable, Future[None]] = {}

    def add(
        self, kernel: object, run: Callable[..., Any], arguments: Sequence[Any], constants: Mapping[str, Any]
    ) -> None:
        """Compile a kernel for these arguments; `run(..., warmup=True)` compiles it without launching it."""
        key = id(kernel), tuple(map(_kind, arguments)), tuple(constants.items())
        if key not in self.jobs:
            self.jobs[key] = self.pool.submit(_compile, run, arguments, constants, torch.cuda.current_device())

    def wait(self) -> None:
        for job in self.jobs.values():
            if error := job.exception():  # the kernel's first launch raises it again
                log.debug("a kernel was not compiled ahead: %s", error)


def compiler() -> KernelCompiler | None:
    """The compiler that launches are handed to; None if they are to launch."""
    return _open


def first_time(key: Hashable) -> bool:
    """Whether this process has not asked with this key before."""
    new = key not in _compiled
    _compiled.add(key)
    return new


@contextmanager
def compiled_in_parallel() -> Iterator[KernelCompiler]:
    """Compile the kernels that are launched inside the context, and launch none of them.

    What they would compute is undefined, so the results of the pass must not be used.
    """
    global _open
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with ThreadPoolExecutor(min(cores, MOST_THREADS), "compile-kernel") as pool:
        # A module's attribute and no context variable: the backward pass runs in a thread of its own.
        _open = opened = KernelCompiler(pool)
        try:
            yield opened
        finally:
            _open = None
        opened.wait()


def _compile(run: Callable[..., Any], arguments: Sequence[Any], constants: Mapping[str, Any], device: int) -> None:
    torch.cuda.set_device(device)
    compiled = run(*arguments, grid=None, warmup=True, **constants)
    _ = compiled.run  # builds the launcher and loads the kernel


def _kind(value: Any) -> Hashable:
    """What Triton distinguishes in an argument: a kernel is compiled anew for each."""
    if isinstance(value, Tensor):
        return value.dtype, value.data_ptr() % 16 == 0
    if isinstance(value, int):
        return type(value).__name__, value == 1, value % 16 == 0
    return type(value).__name__
