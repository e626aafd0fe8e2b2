"""Gradients as rows of a matrix; policies see only their inner products."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
import torch

from polytask.policies import POLICIES
from polytask.policies.base import PolicyContext

Floats = npt.NDArray[np.float64]
Update = Callable[..., Floats]


@pytest.fixture
def update() -> Update:
    """update(policy, gradients [K, N], own=1, **options): the policy's update."""

    def made(name: str, gradients: Floats, own: int = 1, **options: object) -> Floats:
        tasks = [f"task{k}" for k in range(len(gradients))]
        context = PolicyContext(dict.fromkeys(tasks, 1.0), dict.fromkeys(tasks, "classes"), 10)
        weights = POLICIES[name](context, **options).combine(torch.from_numpy(gradients @ gradients.T), own)
        found: Floats = weights.numpy() @ gradients
        return found

    return made


@pytest.fixture
def step_update(update: Update) -> Update:
    """step_update(policy, gradients, **options): the update of a step that has all of these tasks."""
    return lambda name, gradients, **options: update(name, gradients, own=len(gradients), **options)


@pytest.fixture
def drawn() -> Callable[..., Floats]:
    """drawn(seed, tasks=None, uneven=False): gradients [K, N] that partly agree; uneven: of lengths 1e-6 to 1e3."""

    def make(seed: int, tasks: int | None = None, uneven: bool = False) -> Floats:
        rng = np.random.default_rng(seed)
        tasks = tasks or int(rng.integers(2, 17))
        numbers = int(rng.integers(2, 40))
        gradients: Floats = rng.normal(size=(tasks, numbers)) + rng.choice([0.0, 0.3, 1.0]) * rng.normal(size=numbers)
        return gradients * 10.0 ** rng.uniform(-6, 3, size=(tasks, 1)) if uneven else gradients

    return make
