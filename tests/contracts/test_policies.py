"""Every policy of the table: a finite result for any tasks in any order, and a state that can be restored."""

from collections.abc import Callable

import pytest

from polytask.contracts import policies as contract
from polytask.policies import POLICIES


@pytest.mark.parametrize("holds", contract.PROPERTIES, ids=lambda function: function.__name__)
@pytest.mark.parametrize("name", POLICIES)
def test_the_contract(name: str, holds: Callable[[contract.Method], None]) -> None:
    holds(POLICIES[name])


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_can_be_captured(name: str) -> None:
    """tests/training/test_captured_methods.py replays them."""
    assert vars(POLICIES[name]).get("capturable")
