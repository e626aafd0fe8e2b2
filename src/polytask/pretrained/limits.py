"""Limits the size of a model: parameters are counted before memory is allocated for them."""

import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from polytask.encoders.base import EncoderShape
from polytask.pretrained.kinds import parameter_shapes
from polytask.types import UserError

FACTORIES = {torch.empty, torch.zeros, torch.ones, torch.full, torch.rand, torch.randn, torch.eye}
FLOAT_BYTES = 4


def num_parameters(shape: EncoderShape) -> int:
    """The number of parameters of an encoder of this shape."""
    return sum(map(math.prod, parameter_shapes(shape).values()))


def most_parameters(meminfo: Path = Path("/proc/meminfo"), group: Path = Path("/sys/fs/cgroup/memory.max")) -> int:
    """The number of float32 parameters that fit in three quarters of the memory available to this process."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    available = min([total, *_read_bytes(meminfo, "MemAvailable:", 1024), *_read_bytes(group, "", 1)])
    return available * 3 // 4 // FLOAT_BYTES


def _read_bytes(path: Path, start: str, unit: int) -> list[int]:
    """The number after `start` in a file, in bytes; empty if the file has no such number."""
    try:
        lines = path.read_text(encoding="ascii").splitlines()
        return [int(line.removeprefix(start).split()[0]) * unit for line in lines if line.startswith(start)]
    except (OSError, ValueError, IndexError):  # also "max", which means no limit
        return []


def check_parameters(shape: EncoderShape, where: str) -> None:
    """Raises a UserError if an encoder of this shape does not fit in memory."""
    needed, most = num_parameters(shape), most_parameters()
    if needed > most:
        raise UserError(
            f"{where}: an encoder of this shape has {needed:,} parameters ({FLOAT_BYTES * needed / 1e9:,.1f} GB), but "
            f"the available memory is enough for {most:,}; choose smaller sizes"
        )


class AtMost(TorchFunctionMode):
    """Raises a UserError inside the context before more than `most` tensor elements are allocated.

    It counts what constructors of modules call: functions that create tensors, and copies.
    """

    def __init__(self, most: int, message: str) -> None:
        super().__init__()
        self.left = most
        self.message = message

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in FACTORIES:
            self.left -= _num_elements(args, kwargs)
        elif func in (torch.Tensor.clone, torch.Tensor.__deepcopy__, torch.clone):
            self.left -= args[0].numel()
        if self.left < 0:
            raise UserError(self.message)
        return func(*args, **kwargs)


def _num_elements(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int:
    """The number of elements of a new tensor, from the arguments of `empty(2, 3)` or `empty((2, 3))`."""
    given = (kwargs["size"],) if "size" in kwargs else args
    if given and isinstance(given[0], tuple | list):
        return math.prod(given[0])
    return math.prod(size for size in given if isinstance(size, int))
