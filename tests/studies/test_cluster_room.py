"""The number of cells that fit on a node."""

import math

import pytest

from polytask.studies.cluster_room import check_numbers, no_room, room
from polytask.types import UserError

NODE = {"CPU": 16.0, "GPU": 2.0}


@pytest.mark.parametrize(
    ("cpus", "gpus", "cells"),
    [
        (1, 0, 16),
        (3, 0, 5),
        (0.5, 0, 32),
        (1, 1, 2),
        (1, 2, 1),
        (1, 3, 0),
        (1, 0.5, 4),
        (1, 0.4, 4),  # not 5: 0.2 are left on each
        (1, 0.1, 16),
        (17, 0, 0),
    ],
)
def test_cells_on_a_node(cpus: float, gpus: float, cells: int) -> None:
    assert room(NODE, cpus, gpus) == cells
    assert room({"memory": 1e9}, cpus, gpus) == 0


@pytest.mark.parametrize("gpus", [-1, 1.5, math.inf, math.nan])
def test_impossible_numbers_of_gpus(gpus: float) -> None:
    with pytest.raises(UserError, match=r"--gpus-per-cell: must be in \[0, 1\] or a whole number"):
        check_numbers(None, 1, gpus)


def test_the_refusal_names_the_largest_node() -> None:
    text = no_room([NODE, {"CPU": 64.0}], 1, 4)
    assert "needs 1 CPU and 4 GPUs" in text
    assert "the largest one has 16 CPUs and 2 GPUs" in text
    assert "has 0 CPUs and 0 GPUs" in no_room([], 1, 0)
