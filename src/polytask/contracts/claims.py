"""How properties are stated: an error with a sentence, also where Python ignores `assert` (python -O)."""

from typing import Any

import torch
from torch import Tensor


def require(holds: Any, message: str) -> None:
    if not bool(holds):
        raise AssertionError(message)


def require_close(found: Tensor, wanted: Tensor, message: str, *, atol: float, rtol: float = 0.0) -> None:
    try:
        torch.testing.assert_close(found, wanted, atol=atol, rtol=rtol)
    except AssertionError as error:
        lines = [line.partition(" (up to")[0].partition(" at index")[0] for line in str(error).splitlines()]
        details = next((line for line in lines if "bsolute difference" in line), str(error))
        raise AssertionError(f"{message} ({details})") from None


def require_finite(tensor: Tensor, what: str) -> None:
    require(torch.isfinite(tensor).all(), f"{what} must be finite, found NaN or infinity")
