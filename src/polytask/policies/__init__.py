"""Policies by name: how the tasks' losses and gradients become one update."""

from collections.abc import Callable

from polytask.policies.base import Policy
from polytask.policies.dwa import DynamicWeightAverage
from polytask.policies.sum import WeightedSum
from polytask.policies.uncertainty import Uncertainty

POLICIES: dict[str, Callable[..., Policy]] = {
    "dwa": DynamicWeightAverage,
    "sum": WeightedSum,
    "uncertainty": Uncertainty,
}
