"""AdamW's update under the names that captured steps import; the updates of all optimizers are in `kernels/updates`."""

import torch

from polytask.kernels.updates import Learned, Table, declared, norm_of, update_for
from polytask.kernels.updates.adamw import AdamWUpdate as Update

__all__ = ["Learned", "Table", "Update", "declared", "norm_of", "update_fits"]


def update_fits(optimizer: torch.optim.Optimizer) -> bool:
    """Whether `Update` can replace the step of this optimizer on the device of its parameters."""
    return isinstance(update_for(optimizer), Update)
