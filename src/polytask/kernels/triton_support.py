"""Triton where it is there, and whether its kernels can be compiled. Knows nothing of polytask."""

import os
import shutil
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = tl = None

TRITON = triton is not None
__all__ = ["TRITON", "jit", "kernels_run", "shared_memory", "tl"]


def jit(*changing: str) -> Callable[[Any], Any]:
    """Makes a function a kernel; where there is no Triton it stays what it is, and must not be called.

    `changing` are arguments that are other numbers from step to step: without being told, Triton compiles a kernel anew
    where one of them is a multiple of 16, possibly in a step that is being captured.
    """
    return lambda function: triton.jit(function, do_not_specialize=list(changing)) if TRITON else function


@cache
def kernels_run(device: torch.device) -> bool:
    """Triton is there, the C compiler that it needs for what launches a kernel (many containers have none), and a GPU
    of the kind that it compiles for."""
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
    there = TRITON and compiler is not None and device.type == "cuda"
    return there and torch.cuda.get_device_capability(device) >= (8, 0)


@cache
def shared_memory(device: torch.device) -> int:
    """Bytes that a program may have."""
    if device.type != "cuda":
        return 0
    properties: Any = torch.cuda.get_device_properties(device)
    return int(getattr(properties, "shared_memory_per_block_optin", 0))
