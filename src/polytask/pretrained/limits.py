"""How large a model may be: parameters are counted before memory is taken for them. Knows shapes, no weights."""

import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from polytask.encoders.bert import BertShape
from polytask.types import UserError

FACTORIES = {torch.empty, torch.zeros, torch.ones, torch.full, torch.rand, torch.randn, torch.eye}
FLOAT_BYTES = 4


def num_parameters(shape: BertShape) -> int:
    """The parameters of a Bert of this shape, without making one."""
    hidden, ffn = shape.hidden, shape.ffn
    norm, square = 2 * hidden, hidden * hidden + hidden
    layer = 4 * square + hidden * ffn + ffn + ffn * hidden + hidden + 2 * norm
    return (shape.vocabulary + shape.positions + shape.segments) * hidden + norm + shape.layers * layer + square


def most_parameters(meminfo: Path = Path("/proc/meminfo"), group: Path = Path("/sys/fs/cgroup/memory.max")) -> int:
    """As many float32 numbers as three quarters of the memory that is available, to this container or at all."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    found = [pages, *_numbers(meminfo, "MemAvailable:", 1024), *_numbers(group, "", 1)]
    return min(found) * 3 // 4 // FLOAT_BYTES


def _numbers(path: Path, start: str, unit: int) -> list[int]:
    """The first number in the line with this start; none where the file does not say."""
    try:
        lines = path.read_text(encoding="ascii").splitlines()
        return [int(line.removeprefix(start).split()[0]) * unit for line in lines if line.startswith(start)]
    except (OSError, ValueError, IndexError):  # also "max", which is no limit
        return []


def check_parameters(shape: BertShape, where: str) -> None:
    """Refuses an encoder that this machine's memory cannot hold."""
    needed, most = num_parameters(shape), most_parameters()
    if needed > most:
        raise UserError(
            f"{where}: an encoder of these sizes has {needed:,} parameters ({FLOAT_BYTES * needed / 1e9:,.1f} GB), and "
            f"the memory available here holds at most {most:,}; choose smaller sizes"
        )


class AtMost(TorchFunctionMode):
    """Within it, a module that would take more than `most` numbers of memory raises a UserError before it takes them.

    Counts what the constructors of modules call: factories of tensors, and copies.
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
            self.left -= _asked_for(args, kwargs)
        elif func in (torch.Tensor.clone, torch.Tensor.__deepcopy__, torch.clone):
            self.left -= args[0].numel()
        if self.left < 0:
            raise UserError(self.message)
        return func(*args, **kwargs)


def _asked_for(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int:
    """The numbers in a tensor of the size that a factory is called with: `empty(2, 3)` or `empty((2, 3))`."""
    given = (kwargs["size"],) if "size" in kwargs else args
    sizes = given[0] if given and isinstance(given[0], tuple | list) else [one for one in given if isinstance(one, int)]
    return math.prod(sizes)
