"""What all policies that compare the tasks of one step have in common."""

from typing import Any

import numpy as np
import pytest
import torch

from polytask.policies import POLICIES
from polytask.policies.base import StepPolicy

NAMES = [name for name, made in POLICIES.items() if isinstance(made, type) and issubclass(made, StepPolicy)]


@pytest.mark.parametrize("name", NAMES)
def test_one_task_and_zero_gradients_are_unchanged(step_update: Any, name: str) -> None:
    assert (step_update(name, np.array([[3.0, -1.0]])) == [3.0, -1.0]).all()
    assert (step_update(name, np.zeros((2, 3))) == 0).all()


@pytest.mark.parametrize("name", NAMES)
def test_two_tasks_that_agree_in_full_give_their_sum(step_update: Any, name: str) -> None:
    both = np.array([[3.0, -1.0], [3.0, -1.0]])
    longer = 1.5 if name == "cagrad" else 1.0  # by c, in the direction of the task that improves least
    np.testing.assert_allclose(step_update(name, both), longer * both.sum(0), rtol=1e-5)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", [1e-12, 1e-4, 1e8])
def test_the_gradients_size_changes_nothing_else(step_update: Any, drawn: Any, name: str, size: float) -> None:
    """Loss weights and long training make gradients small; no method may stop there."""
    for seed in range(5):
        gradients = drawn(seed, tasks=4)
        torch.manual_seed(0)
        expected = step_update(name, gradients)
        torch.manual_seed(0)
        found = step_update(name, size * gradients)
        assert np.linalg.norm(expected) > 0
        np.testing.assert_allclose(found / size, expected, rtol=1e-6, atol=1e-6 * np.abs(expected).max())


@pytest.mark.parametrize("name", [name for name in NAMES if name != "pcgrad"])  # which draws a random order
def test_the_order_of_the_tasks_does_not_matter(step_update: Any, drawn: Any, name: str) -> None:
    for seed in range(5):
        gradients = drawn(seed, tasks=5)
        expected = step_update(name, gradients)
        np.testing.assert_allclose(step_update(name, gradients[[3, 1, 4, 0, 2]]), expected, rtol=1e-4, atol=1e-8)


@pytest.mark.parametrize("name", ["mgda", "upgrad", "dualproj"])
@pytest.mark.parametrize("uneven", [False, True])
def test_no_task_gets_worse(step_update: Any, drawn: Any, name: str, uneven: bool) -> None:
    for seed in range(20):
        gradients = drawn(seed, uneven=uneven)
        found = step_update(name, gradients)
        against = gradients @ found / np.linalg.norm(gradients, axis=1) / np.linalg.norm(gradients, axis=1).max()
        assert against.min() > -1e-4
