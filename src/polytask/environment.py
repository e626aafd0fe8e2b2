"""The machine: what a run runs on, versions, hardware, commit. Knows nothing of the run."""

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
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.processor()
    )


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
        return torch.device(name)
    except RuntimeError:
        raise UserError(f"device {name}: not a device torch knows; use auto, cpu or cuda") from None
