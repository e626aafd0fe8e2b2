"""TorchJD's weightings through our policies: by hand where that is short, by their properties elsewhere."""

import sys
from typing import Any

import numpy as np
import pytest
import torch
from torchjd.aggregation import UPGrad

from polytask.policies import POLICIES
from polytask.policies.base import PolicyContext
from polytask.policies.surgery import Surgery
from polytask.types import UserError

NAMES = [name for name, made in POLICIES.items() if isinstance(made, type) and issubclass(made, Surgery)]


def test_pcgrad_by_hand(update: Any) -> None:
    # Two tasks: no order to draw. (1, 0) loses its part along (-1, 1) and becomes (.5, .5); (-1, 1) becomes (0, 1).
    found = update("pcgrad", np.array([[1.0, 0.0], [-1.0, 1.0]]), own=2)
    np.testing.assert_allclose(found, [0.5, 1.5])
    agreeing = np.array([[1.0, 0.0], [1.0, 1.0]])
    np.testing.assert_allclose(update("pcgrad", agreeing, own=2), agreeing.sum(0))


def test_upgrad_is_torchjds_with_its_own_solver(update: Any) -> None:
    for seed in range(5):
        gradients = np.random.default_rng(seed).normal(size=(3, 6))
        theirs = 3 * UPGrad()(torch.from_numpy(gradients)).numpy()
        np.testing.assert_allclose(update("upgrad", gradients, own=3), theirs, atol=2e-2)


@pytest.mark.parametrize("name", NAMES)
def test_one_task_and_gradients_of_zero_are_left_alone(update: Any, name: str) -> None:
    assert (update(name, np.array([[3.0, -1.0]])) == [3.0, -1.0]).all()
    assert (update(name, np.zeros((2, 3)), own=2) == 0).all()


@pytest.mark.parametrize("name", NAMES)
def test_two_tasks_that_agree_in_full_give_their_sum(update: Any, name: str) -> None:
    both = np.array([[3.0, -1.0], [3.0, -1.0]])
    longer = 1.5 if name == "cagrad" else 1.0  # by c, in the direction of the task that is worst off
    np.testing.assert_allclose(update(name, both, own=2), longer * both.sum(0), rtol=2e-2)


@pytest.mark.parametrize("name", ["mgda", "upgrad", "dualproj"])
def test_no_task_gets_worse(update: Any, name: str) -> None:
    for seed in range(10):
        gradients = np.random.default_rng(seed).normal(size=(3, 5))
        found = update(name, gradients, own=3)
        assert (gradients @ found >= -2e-2 * np.linalg.norm(gradients, axis=1) * np.linalg.norm(found)).all()


def test_without_torchjd_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchjd", None)
    context = PolicyContext({"a": 1.0}, {"a": "classes"}, 1)
    with pytest.raises(UserError, match=r"pip install 'polytask\[gradients\]'"):
        POLICIES["pcgrad"](context)
