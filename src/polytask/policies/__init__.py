"""Policies by name: how the tasks' losses and gradients become one update."""

from collections.abc import Callable

from polytask.policies.a_gem import AGem
from polytask.policies.aligned_mtl import AlignedMtl
from polytask.policies.base import GradientPolicy, Policy, PolicyContext
from polytask.policies.cagrad import CaGrad
from polytask.policies.dualproj import DualProj
from polytask.policies.dwa import DynamicWeightAverage
from polytask.policies.gem import Gem
from polytask.policies.gradients import combine_gradients
from polytask.policies.imtl_g import ImtlG
from polytask.policies.mgda import Mgda
from polytask.policies.pcgrad import PcGrad
from polytask.policies.replay import Replay
from polytask.policies.sum import WeightedSum
from polytask.policies.uncertainty import Uncertainty
from polytask.policies.upgrad import UpGrad

POLICIES: dict[str, Callable[..., Policy]] = {
    "a_gem": AGem,
    "aligned_mtl": AlignedMtl,
    "cagrad": CaGrad,
    "dualproj": DualProj,
    "dwa": DynamicWeightAverage,
    "gem": Gem,
    "imtl_g": ImtlG,
    "mgda": Mgda,
    "pcgrad": PcGrad,
    "replay": Replay,
    "sum": WeightedSum,
    "uncertainty": Uncertainty,
    "upgrad": UpGrad,
}

__all__ = [
    "POLICIES",
    "AGem",
    "AlignedMtl",
    "CaGrad",
    "DualProj",
    "DynamicWeightAverage",
    "Gem",
    "GradientPolicy",
    "ImtlG",
    "Mgda",
    "PcGrad",
    "Policy",
    "PolicyContext",
    "Replay",
    "Uncertainty",
    "UpGrad",
    "WeightedSum",
    "combine_gradients",
]
