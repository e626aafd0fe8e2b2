"""Triton if it is installed and needed, and whether its kernels can be compiled and run.

Importing Triton and preparing the kernels takes a third of a second, which a prediction on a machine without a GPU
would wait for. It is imported if there is a GPU, for its interpreter, or if the program has imported it already.
"""

import os
import shutil
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from polytask.kernels.compiling import compiler

try:
    if "triton" not in sys.modules and os.environ.get("TRITON_INTERPRET") != "1" and not torch.cuda.device_count():
        raise ImportError
    import triton
    import triton.language as tl
except ImportError:
    triton = tl = None

TRITON = triton is not None
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
__all__ = ["TRITON", "jit", "kernels_run", "shared_memory", "tl"]


if TRITON:

    class Kernel(triton.JITFunction):  # type: ignore[misc]
        """A kernel that can be compiled in parallel with others: see compiling.py."""

        def run(self, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
            opened = compiler()
            if opened is None:
                return super().run(*args, grid=grid, warmup=warmup, **kwargs)
            return opened.add(self, super().run, args, kwargs)


def jit(*changing: str) -> Callable[[Any], Any]:
    """A decorator that makes a function a kernel. Without Triton the function stays as it is and must not be called.

    `changing` names the integer arguments that differ from step to step. Otherwise Triton would compile a kernel again
    when one of them is a multiple of 16, possibly while a step is captured.
    """

    def decorate(function: Any) -> Any:
        if not TRITON:
            return function
        kind = triton.jit if INTERPRETED else Kernel
        return kind(function, do_not_specialize=list(changing))

    return decorate


@cache
def kernels_run(device: torch.device) -> bool:
    """Whether Triton is installed, with a C compiler for its launchers (many containers have none) and a GPU that it
    supports."""
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
    usable = TRITON and compiler is not None and device.type == "cuda"
    return usable and torch.cuda.get_device_capability(device) >= (8, 0)


@cache
def shared_memory(device: torch.device) -> int:
    """The bytes of shared memory that a program may use."""
    if device.type != "cuda":
        return 0
    properties: Any = torch.cuda.get_device_properties(device)
    return int(getattr(properties, "shared_memory_per_block_optin", 0))
