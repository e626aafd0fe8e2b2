"""Regularizers by name: penalties added to the loss."""

from collections.abc import Callable

from polytask.regularizers.base import Regularizer
from polytask.regularizers.bregman import Bregman
from polytask.regularizers.ewc import Ewc
from polytask.regularizers.in_batch_negatives import InBatchNegatives
from polytask.regularizers.l2_sp import L2Sp
from polytask.regularizers.lnsr import Lnsr
from polytask.regularizers.lwf import Lwf
from polytask.regularizers.r_drop import RDrop
from polytask.regularizers.smart import Smart
from polytask.regularizers.soft_sharing import SoftSharing

REGULARIZERS: dict[str, Callable[..., Regularizer]] = {
    "bregman": Bregman,
    "ewc": Ewc,
    "in_batch_negatives": InBatchNegatives,
    "l2_sp": L2Sp,
    "lnsr": Lnsr,
    "lwf": Lwf,
    "r_drop": RDrop,
    "smart": Smart,
    "soft_sharing": SoftSharing,
}

__all__ = [
    "REGULARIZERS",
    "Bregman",
    "Ewc",
    "InBatchNegatives",
    "L2Sp",
    "Lnsr",
    "Lwf",
    "RDrop",
    "Regularizer",
    "Smart",
    "SoftSharing",
]
