"""Samplers by name: which tasks enter a step."""

from collections.abc import Callable

from polytask.samplers.base import Sampler
from polytask.samplers.proportional import Proportional
from polytask.samplers.round_robin import RoundRobin

SAMPLERS: dict[str, Callable[..., Sampler]] = {
    "proportional": Proportional,
    "round_robin": RoundRobin,
}
