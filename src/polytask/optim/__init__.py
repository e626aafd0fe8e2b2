"""Optimizers by name: torch.optim.Optimizer subclasses whose keyword arguments are a recipe's options."""

from collections.abc import Callable

import torch

from polytask.optim.adamw import AdamW
from polytask.optim.fused_adamw import FusedAdamW

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adamw": AdamW,
    "fused_adamw": FusedAdamW,
}
