"""The machine that polytask runs on: device, precision, CPU threads, memory, versions."""

import ctypes
import logging
import math
import os
import platform
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F

from polytask.types import UserError
from polytask.version import __version__

log = logging.getLogger(__name__)
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8  # glibc's constants for mallopt
KEPT_BYTES = 2**30
BF16_FLAGS = {"amx_bf16", "avx512_bf16", "bf16"}
"""CPU flags of processors that multiply matrices in bf16; the last one is ARM's."""
MEASURED_SECONDS = 0.1
"""Duration of the measurement for each number of threads."""
CLEARLY_FASTER = 1.5
"""Fewer threads are chosen only if they are this many times as fast: smaller differences are noise."""
PACKAGES = ("torch", "numpy", "scipy", "tokenizers", "safetensors", "pyarrow")


def environment(device: torch.device) -> dict[str, Any]:
    """Versions, hardware and commit, as environment.json records them."""
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
    """The value of the first line of /proc/cpuinfo that starts with one of these names; empty if there is none."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(names)), "")


@cache
def commit() -> str | None:
    """The commit of polytask's source if it runs from a git checkout."""
    checkout = Path(__file__).parents[2]
    if not (checkout / ".git").exists():  # installed, maybe inside another project's checkout
        return None
    # fsmonitor is a program that a repository's settings may choose.
    command = ["git", "-C", str(checkout), "-c", "core.fsmonitor=false"]
    command += ["describe", "--always", "--dirty", "--abbrev=40"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


# --- device -----------------------------------------------------------------------------------------------------------
def pick_device(name: str) -> torch.device:
    """The device of this name; `auto` is CUDA if available. Raises a UserError if this machine does not have it."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):  # torch also has meta, whose tensors have no values
        raise UserError(f"device {name}: must be auto, cpu, cuda or cuda:NUMBER")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UserError(f"device {name}: this machine has no CUDA device that torch can use; use cpu or auto")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        last = torch.cuda.device_count() - 1
        raise UserError(f"device {name}: the last CUDA device of this machine is cuda:{last}; use that, or cuda")
    return device


def device_of(device: torch.device, local_rank: int) -> torch.device:
    """The device of one of several processes on this machine: the CPU, or a GPU of its own."""
    if device.type != "cuda":
        return device
    if device.index is not None or local_rank >= torch.cuda.device_count():
        raise UserError(
            f"device {device}: process {local_rank} of this machine needs a GPU of its own, and the machine has "
            f"{torch.cuda.device_count()}; start at most that many processes, with device auto or cuda"
        )
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


_warm_up: threading.Thread | None = None


def start_warm_up(device: torch.device) -> None:
    """Loads cuBLAS and a first kernel on a CUDA device in a thread, while the data is read.

    Also lets Triton hash its own files, which it does once per process before it looks for a compiled kernel; threads
    that compile in parallel would all do it.
    """
    global _warm_up

    def load() -> None:
        square = torch.ones(16, 16, device=device, dtype=torch.bfloat16)
        (square @ square).sum().item()
        with suppress(ImportError):  # without Triton, or with a version that has the function elsewhere
            from triton.runtime.cache import triton_key  # noqa: PLC0415

            triton_key()

    if device.type == "cuda" and _warm_up is None:
        _warm_up = threading.Thread(target=load, daemon=True)
        _warm_up.start()


def wait_for_warm_up() -> None:
    """Waits for `start_warm_up`: no other thread may use the device while a step is captured."""
    if _warm_up is not None:
        _warm_up.join()


# --- precision --------------------------------------------------------------------------------------------------------
def multiplies_bf16(device: torch.device) -> bool:
    """Whether the device multiplies bf16 matrices natively, which is about twice as fast as float32."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return not BF16_FLAGS.isdisjoint(_cpu_line("flags", "Features").split())


def pick_precision(asked: Literal["auto", "float32", "bf16"], device: torch.device) -> Literal["float32", "bf16"]:
    """Resolves `auto` to bf16 if the device supports it natively, else to float32."""
    if asked == "auto":
        return "bf16" if multiplies_bf16(device) else "float32"
    if asked == "bf16" and not multiplies_bf16(device):
        log.warning(
            "train.precision: this %s does not support bf16 natively, and float32 is much faster; use precision: auto",
            "GPU" if device.type == "cuda" else "processor",
        )
    return asked


# --- CPU threads ------------------------------------------------------------------------------------------------------
def usable_cores(quota: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """The cores this process may use: its CPU affinity, limited by the container's quota, which torch ignores."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        share, period = map(int, quota.read_text(encoding="utf-8").split())
    except (OSError, ValueError):  # the file does not exist, or contains no limit ("max 100000")
        return allowed
    return max(1, min(allowed, math.ceil(share / period)))


def set_threads(device: torch.device, count: int | None = None) -> None:
    """Sets the number of CPU threads of this process; by default what `pick_threads` chooses."""
    torch.set_num_threads(count or pick_threads(device))


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Uses this number of CPU threads inside the context."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def one_core_workers(count: int) -> Iterator[ThreadPoolExecutor]:
    """A pool of threads in which every operation uses a single core."""
    before = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(count, initializer=torch.set_num_threads, initargs=(1,)) as workers:
            yield workers
    finally:
        torch.set_num_threads(before)  # threads that start later inherit the last setting of any thread


def pick_threads(device: torch.device, measure: Callable[[int], float] | None = None) -> int:
    """The number of CPU threads to use: all usable cores, unless the model runs on the CPU and fewer are faster.

    If other programs use the same cores, every parallel operation waits for the thread that was suspended, and two
    threads can be five times as slow as one. `measure` returns the seconds that a piece of work takes with a number of
    threads.
    """
    most = min(torch.get_num_threads(), usable_cores())
    if most == 1 or device.type != "cpu":
        return most
    candidates = [most]
    while candidates[-1] > 1:
        candidates.append(candidates[-1] // 2)
    seconds = {count: (measure or _measure_seconds)(count) for count in candidates}
    fastest = min(candidates, key=seconds.__getitem__)
    if seconds[most] < CLEARLY_FASTER * seconds[fastest]:
        return most
    log.warning(
        "using %d of %d CPU threads, which is %.1f times as fast here, probably because other programs use the same "
        "cores; set train.threads to choose the number yourself",
        fastest,
        most,
        seconds[most] / seconds[fastest],
    )
    return fastest


def _measure_seconds(count: int) -> float:
    """Mean time of the feed-forward part of a small encoder's layer. Draws no random numbers."""
    with threads(count):
        x_TD, up_FD, down_DF = torch.full((256, 384), 0.1), torch.full((1536, 384), 0.1), torch.full((384, 1536), 0.1)
        rounds, started = 0, time.perf_counter()
        while rounds < 2 or time.perf_counter() - started < MEASURED_SECONDS:
            F.layer_norm(F.linear(F.gelu(F.linear(x_TD, up_FD)), down_DF), (384,))
            rounds += 1
        return (time.perf_counter() - started) / rounds


# --- imports ----------------------------------------------------------------------------------------------------------
def skip_compiler_import() -> None:
    """Lets torch's optimizers be built without importing its compiler, which takes seconds and is not used here.

    Some of their methods are wrapped so that the compiler leaves them alone, and the first call of a wrapper imports
    it. A wrapper calls whatever is stored in this attribute; in a version of torch without it, nothing changes. The
    `step` of torch's own optimizers still imports the compiler; the update kernels on a GPU do not call it.
    """
    for method in vars(torch.optim.Optimizer).values():
        inner = getattr(method, "__wrapped__", None)
        if inner is not None and "torch._dynamo" not in sys.modules:
            inner.__dynamo_disable = inner


# --- memory -----------------------------------------------------------------------------------------------------------
def keep_freed_memory() -> bool:
    """Lets this process keep up to a gigabyte of freed memory for reuse. Returns whether it worked (glibc only).

    Otherwise large buffers, such as the 47 MB gradient of MiniLM's word embeddings, are returned to the kernel after
    every step, which zeroes them page by page when they are allocated again: 5 % of a step on the CPU. The results are
    the same.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    return all([mallopt(M_MMAP_THRESHOLD, KEPT_BYTES), mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)])


def release_freed_memory() -> None:
    """Returns freed memory to the kernel, also what `keep_freed_memory` has kept (glibc only)."""
    with suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


def use_one_arena() -> None:
    """Lets all threads of the process allocate memory from the same arena (glibc only).

    By default each thread has an arena of its own, and the memory that one has freed is not used by the others.
    """
    with suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1)


def limit_kernel_cache(count: int = 64) -> None:
    """Lets oneDNN keep at most this number of compiled kernels; works only before the first matmul of the process.

    It compiles a kernel for each size of a matmul and keeps 1,024 by default. A process that computes batches of all
    sizes then grows by a gigabyte. The layers of an encoder share their kernels, so a few sizes are enough.
    """
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", str(count))


def reset_peak_memory(device: torch.device) -> None:
    """Starts the measurement of `peak_memory` again: an earlier run of the process may have used more."""
    if device.type == "cuda":
        if torch.cuda.is_initialized():
            torch.cuda.reset_peak_memory_stats(device)
        return
    release_freed_memory()
    with suppress(OSError):  # Linux only
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")


def peak_memory(device: torch.device) -> int:
    """Peak memory in bytes since `reset_peak_memory`: of the GPU on CUDA, of the process on the CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    with suppress(OSError):
        status = Path("/proc/self/status").read_text(encoding="utf-8")
        if "VmHWM:" in status:
            return int(status.partition("VmHWM:")[2].split()[0]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
