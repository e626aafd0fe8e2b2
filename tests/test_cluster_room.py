"""The number of cells that fit on a node."""

import math

import pytest

from polytask.cluster_room import check_numbers, default_gpus, no_room, room
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


def test_the_refusals_name_the_options_of_the_command() -> None:
    with pytest.raises(UserError, match=r"--gpus-per-worker: must be in \[0, 1\] or a whole number, found 1.5"):
        check_numbers(None, 1, 1.5, "worker")
    assert no_room([NODE], 1, 4, "worker").startswith("--gpus-per-worker: a worker needs 1 CPU and 4 GPUs, but no node")


def test_a_gpu_by_default_where_there_is_one() -> None:
    assert default_gpus([{"CPU": 4.0}, NODE]) == 1
    assert default_gpus([{"CPU": 4.0, "GPU": 0.0}]) == default_gpus([]) == 0
