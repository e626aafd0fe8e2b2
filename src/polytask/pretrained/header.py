"""What a safetensors file says it holds, read before any tensor is. Knows files; knows no model."""

import math
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import Tensor

from polytask.types import UserError

FLOATS = {"F64", "F32", "F16", "BF16"}


@dataclass(frozen=True)
class Entry:
    """What the header of a safetensors file says of one tensor."""

    shape: tuple[int, ...]
    dtype: str
    """As safetensors writes it: F32, BF16 ..."""


def read_header(path: Path, way_out: str = "download the encoder again") -> dict[str, Entry]:
    """Every tensor of a safetensors file, by its name there; no tensor is read."""
    try:
        with safe_open(path, framework="pt") as file:
            slices = {key: file.get_slice(key) for key in file.keys()}  # noqa: SIM118  (no mapping)
            return {key: Entry(tuple(one.get_shape()), one.get_dtype()) for key, one in slices.items()}
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path} is not a whole safetensors file ({error}); {way_out}") from None


def check_finite(path: Path, key: str, tensor: Tensor) -> None:
    """Refuses NaN and infinite weights: every answer computed from them would be NaN too."""
    if tensor.numel() and not all(math.isfinite(edge) for edge in tensor.aminmax()):
        raise UserError(f"{path}: tensor {key} holds NaN or infinite numbers")
