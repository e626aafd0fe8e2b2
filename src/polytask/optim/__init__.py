"""Optimizers by name: torch.optim.Optimizer subclasses whose keyword arguments are a recipe's options."""

from collections.abc import Callable

import torch

from polytask.optim.adamax import Adamax
from polytask.optim.adamw import AdamW
from polytask.optim.fused_adamw import FusedAdamW
from polytask.optim.lamb import Lamb
from polytask.optim.lion import Lion
from polytask.optim.qhadam import QHAdam

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adamax": Adamax,
    "adamw": AdamW,
    "fused_adamw": FusedAdamW,
    "lamb": Lamb,
    "lion": Lion,
    "qhadam": QHAdam,
}

__all__ = [
    "OPTIMIZERS",
    "AdamW",
    "Adamax",
    "FusedAdamW",
    "Lamb",
    "Lion",
    "QHAdam",
]
