"""The machine: what a run runs on, versions, hardware, commit. Knows nothing of the run."""

import ctypes
import math
import os
import platform
import resource
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from polytask.types import UserError
from polytask.version import __version__

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # glibc's numbers for mallopt
KEPT = 2**30
HALVES = {"amx_bf16", "avx512_bf16", "bf16"}
"""What processors that multiply bf16 say they have; the last is ARM's."""
PACKAGES = ("torch", "numpy", "scipy", "tokenizers", "safetensors", "pyarrow")


def environment(device: torch.device) -> dict[str, Any]:
    return {
        "polytask": __version__,
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in PACKAGES},
        "platform": platform.platform(),
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": str(device) if device.type == "cpu" else f"{device} ({torch.cuda.get_device_name(device)})",
        "commit": commit(),
    }


def cpu_name() -> str:
    return _cpu_line("model name") or platform.processor()


def _cpu_line(*names: str) -> str:
    """What the kernel says of the first processor under one of these names; nothing where it does not say."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(names)), "")


def multiplies_bf16(device: torch.device) -> bool:
    """Whether products in bf16 are the device's own, and so about twice as fast as in float32."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return not HALVES.isdisjoint(_cpu_line("flags", "Features").split())


def usable_cores(quota: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """Those this process is bound to, and no more than a container's share of the time, unknown to torch."""
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        share, period = map(int, quota.read_text(encoding="utf-8").split())
    except (OSError, ValueError):  # no such file, or no limit ("max 100000")
        return bound
    return max(1, min(bound, math.ceil(share / period)))


def keep_freed_memory() -> bool:
    """Lets this process keep up to a gigabyte that it has freed, for its next step; whether that worked (glibc only).

    Otherwise the gradient of the word vectors, 47 MB of MiniLM's, is given back after every step and must be zeroed by
    the kernel, page by page, when it is asked for again: 5 % of a step on the CPU. The numbers are the same.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    return all([mallopt(MMAP_THRESHOLD, KEPT), mallopt(TRIM_THRESHOLD, KEPT)])


def commit() -> str | None:
    """The commit of polytask's own source, when it runs from a checkout."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=40"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def peak_memory(device: torch.device) -> int:
    """Bytes: of the card's memory on CUDA, of the process elsewhere."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def pick_device(name: str) -> torch.device:
    """`auto` is CUDA where there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise UserError(f"device {name}: this machine has no CUDA device that torch can use; use cpu or auto")
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):  # torch also knows meta, whose tensors hold no numbers
        raise UserError(f"device {name}: must be auto, cpu, cuda or cuda:NUMBER")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UserError(f"device {name}: this machine has {torch.cuda.device_count()} CUDA device(s), counted from 0")
    return device
