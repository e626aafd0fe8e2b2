"""The machine: what a run runs on, versions, hardware, commit. Knows nothing of the run."""

import ctypes
import logging
import math
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F

from polytask.types import UserError
from polytask.version import __version__

log = logging.getLogger(__name__)
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # glibc's numbers for mallopt
KEPT = 2**30
HALVES = {"amx_bf16", "avx512_bf16", "bf16"}
"""What processors that multiply bf16 say they have; the last is ARM's."""
MEASURED_SECONDS = 0.1
"""Time spent on measuring one number of threads."""
CLEARLY_FASTER = 1.5
"""Fewer threads are chosen only if they are this many times as fast: smaller differences are noise."""
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


def pick_precision(asked: Literal["auto", "float32", "bf16"], device: torch.device) -> Literal["float32", "bf16"]:
    """`auto` is bf16 where the device multiplies it, else float32."""
    if asked == "auto":
        return "bf16" if multiplies_bf16(device) else "float32"
    if asked == "bf16" and not multiplies_bf16(device):
        log.warning(
            "train.precision: this %s has no bf16 arithmetic, and float32 is many times faster; use precision: auto",
            "GPU" if device.type == "cuda" else "processor",
        )
    return asked


def pick_threads(device: torch.device, measure: Callable[[int], float] | None = None) -> int:
    """How many CPU threads to use: all usable cores, unless the model runs on them and fewer are clearly faster.

    When other programs use the same cores, every parallel operation waits for the thread that was put aside, and two
    threads can be five times as slow as one. `measure` returns the seconds that a piece of work takes with a number of
    threads.
    """
    most = min(torch.get_num_threads(), usable_cores())
    if most == 1 or device.type != "cpu":
        return most
    candidates = [most]
    while candidates[-1] > 1:
        candidates.append(candidates[-1] // 2)
    seconds = {threads: (measure or _seconds_with)(threads) for threads in candidates}
    fastest = min(candidates, key=seconds.__getitem__)
    if seconds[most] < CLEARLY_FASTER * seconds[fastest]:
        return most
    log.warning(
        "using %d of %d CPU threads, which is %.1f times as fast here, probably because other programs use the same "
        "cores; set train.threads to choose yourself",
        fastest,
        most,
        seconds[most] / seconds[fastest],
    )
    return fastest


def _seconds_with(threads: int) -> float:
    """Mean time of one feed-forward part of a small encoder. Draws no random numbers."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        x_TD, up_FD, down_DF = torch.full((256, 384), 0.1), torch.full((1536, 384), 0.1), torch.full((384, 1536), 0.1)
        rounds, started = 0, time.perf_counter()
        while rounds < 2 or time.perf_counter() - started < MEASURED_SECONDS:
            F.layer_norm(F.linear(F.gelu(F.linear(x_TD, up_FD)), down_DF), (384,))
            rounds += 1
        return (time.perf_counter() - started) / rounds
    finally:
        torch.set_num_threads(before)


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
    checkout = Path(__file__).parents[2]
    if not (checkout / ".git").exists():  # installed, maybe inside the checkout of something else
        return None
    # fsmonitor is a program that a repository's own settings may name.
    command = ["git", "-C", str(checkout), "-c", "core.fsmonitor=false"]
    command += ["describe", "--always", "--dirty", "--abbrev=40"]
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


def python_module(name: str) -> list[str]:
    """The command for `python -m NAME`, to which arguments can be added.

    `python -m` alone puts the working directory first on the module search path: a file pip.py or difflib.py that lies
    beside the user's data would run. `-P` leaves the working directory out.
    """
    return [sys.executable, "-P", "-m", name]
