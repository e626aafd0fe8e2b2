"""Samplers by name: which tasks enter a step."""

from collections.abc import Callable

from polytask.samplers.annealed import Annealed
from polytask.samplers.balanced import Balanced
from polytask.samplers.base import Sampler, SamplerContext
from polytask.samplers.batches import TaskBatchSampler
from polytask.samplers.in_order import InOrder
from polytask.samplers.mixed import Mixed
from polytask.samplers.power import Power
from polytask.samplers.proportional import Proportional
from polytask.samplers.round_robin import RoundRobin
from polytask.samplers.sequential import Sequential
from polytask.samplers.square_root import SquareRoot
from polytask.samplers.weights import Weights

SAMPLERS: dict[str, Callable[..., Sampler]] = {
    "annealed": Annealed,
    "balanced": Balanced,
    "in_order": InOrder,
    "mixed": Mixed,
    "power": Power,
    "proportional": Proportional,
    "round_robin": RoundRobin,
    "sequential": Sequential,
    "square_root": SquareRoot,
    "weights": Weights,
}

__all__ = [
    "SAMPLERS",
    "Annealed",
    "Balanced",
    "InOrder",
    "Mixed",
    "Power",
    "Proportional",
    "RoundRobin",
    "Sampler",
    "SamplerContext",
    "Sequential",
    "SquareRoot",
    "TaskBatchSampler",
    "Weights",
]
