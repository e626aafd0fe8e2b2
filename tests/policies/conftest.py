"""Gradients made by hand: rows of a matrix, of which policies see the inner products only."""

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
    """update(policy, gradients [K, N], own=1, **options): the update the policy makes of them."""

    def made(name: str, gradients: Floats, own: int = 1, **options: object) -> Floats:
        tasks = [f"task{k}" for k in range(len(gradients))]
        context = PolicyContext(dict.fromkeys(tasks, 1.0), dict.fromkeys(tasks, "classes"), 10)
        weights = POLICIES[name](context, **options).combine(torch.from_numpy(gradients @ gradients.T), own)
        found: Floats = weights.numpy() @ gradients
        return found

    return made
