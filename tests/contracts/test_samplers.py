"""Every sampler of the table: seeded, resumable, and drawing only what there is."""

from collections.abc import Callable

import pytest

from polytask.contracts import samplers as contract
from polytask.samplers import SAMPLERS


@pytest.mark.parametrize("holds", contract.PROPERTIES, ids=lambda function: function.__name__)
@pytest.mark.parametrize("name", SAMPLERS)
def test_the_contract(name: str, holds: Callable[[contract.Method], None]) -> None:
    holds(SAMPLERS[name])
