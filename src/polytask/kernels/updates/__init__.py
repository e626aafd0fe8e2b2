"""Updates that can be captured in a CUDA graph: one for every optimizer of the table."""

import torch

from polytask.kernels.triton_support import kernels_run
from polytask.kernels.updates.adamax import AdamaxUpdate
from polytask.kernels.updates.adamw import AdamWUpdate
from polytask.kernels.updates.following import Following
from polytask.kernels.updates.lamb import LambUpdate
from polytask.kernels.updates.lion import LionUpdate
from polytask.kernels.updates.one_pass import OnePass
from polytask.kernels.updates.plain import PlainUpdate
from polytask.kernels.updates.qhadam import QHAdamUpdate
from polytask.kernels.updates.update import Learned, Table, Update, declared, norm_of
from polytask.optim.adamax import Adamax
from polytask.optim.adamw import AdamW
from polytask.optim.fused_adamw import FusedAdamW
from polytask.optim.lamb import Lamb
from polytask.optim.lion import Lion
from polytask.optim.qhadam import QHAdam

__all__ = ["UPDATES", "Following", "Learned", "PlainUpdate", "Table", "Update", "declared", "norm_of", "update_for"]

UPDATES: dict[type[torch.optim.Optimizer], type[OnePass]] = {
    Adamax: AdamaxUpdate,
    AdamW: AdamWUpdate,
    FusedAdamW: AdamWUpdate,
    Lamb: LambUpdate,
    Lion: LionUpdate,
    QHAdam: QHAdamUpdate,
    torch.optim.AdamW: AdamWUpdate,
}
"""Optimizer -> its update. A subclass is not in the table, because it may override `step` or `update`."""


def update_for(optimizer: torch.optim.Optimizer, *, kernels: bool = True) -> Update | None:
    """Return the update that can replace this optimizer's step, or None: see `UPDATES`.

    A subclass of torch's AdamW that does not override `step` declares `plain_adamw = True`. Without `kernels` the
    update is made of torch's operations, for any device.
    """
    form = AdamWUpdate if declared(optimizer, "plain_adamw") else UPDATES.get(type(optimizer))
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    if form is None or not _is_supported(optimizer) or len({p.device for p in parameters}) != 1:
        return None
    if not all(p.dtype == torch.float32 and p.is_contiguous() for p in parameters):
        return None
    if not kernels:
        return PlainUpdate(optimizer, form.state_names)
    return form(optimizer) if kernels_run(parameters[0].device) else None


def _is_supported(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the options of torch's AdamW, which a loaded state may change, are those of the fused step."""
    if not isinstance(optimizer, torch.optim.AdamW):
        return True
    return all(group["fused"] and not (group["amsgrad"] or group["maximize"]) for group in optimizer.param_groups)
