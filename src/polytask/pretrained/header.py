"""Reads the header of a safetensors file, and checks tensors for NaN."""

import math
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import Tensor

from polytask.types import UserError

FLOATS = {"F64", "F32", "F16", "BF16"}


@dataclass(frozen=True)
class Entry:
    """Shape and type of one tensor in a safetensors file."""

    shape: tuple[int, ...]
    dtype: str
    """As in the file: F32, BF16 ..."""


def read_header(path: Path, remedy: str = "download the encoder again") -> dict[str, Entry]:
    """The shapes and types of all tensors in a safetensors file by name, without reading the tensors."""
    try:
        with safe_open(path, framework="pt") as file:
            slices = {key: file.get_slice(key) for key in file.keys()}  # noqa: SIM118  (no mapping)
            return {key: Entry(tuple(part.get_shape()), part.get_dtype()) for key, part in slices.items()}
    except (SafetensorError, OSError) as error:
        raise damaged(path, error, remedy) from None


def damaged(path: Path, error: Exception, remedy: str = "download the encoder again") -> UserError:
    return UserError(f"{path}: the safetensors file is damaged ({error}); {remedy}")


def check_finite(path: Path, key: str, tensor: Tensor) -> None:
    """Raises a UserError if the tensor has NaN or infinite values, which would make all predictions NaN."""
    if tensor.numel() and not all(math.isfinite(extreme) for extreme in tensor.aminmax()):
        raise UserError(f"{path}: tensor {key} contains NaN or infinite values")
