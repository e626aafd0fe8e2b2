"""Policies by name: how the tasks' losses and gradients become one update."""

from collections.abc import Callable

from polytask.policies.base import Policy
from polytask.policies.sum import WeightedSum

POLICIES: dict[str, Callable[..., Policy]] = {
    "sum": WeightedSum,
}
