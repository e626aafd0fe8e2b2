"""Which examples are kept and drawn: each way of keeping, uniform probabilities, and resuming."""

import json
from collections import Counter
from typing import Any

import pytest

from polytask import seeds
from polytask.policies.base import MemoryPlan
from polytask.training.memory import Memory


def filled(keep: Any, count: int, size: int = 5, seed: int = 0) -> Memory:
    memory = Memory(MemoryPlan(size, keep, None), ["a", "b"], seed)
    for start in range(0, count, 3):
        memory.observe("a", list(range(start, min(start + 3, count))))
    return memory


def test_the_first_and_the_latest() -> None:
    assert filled("first", 17).kept["a"] == [0, 1, 2, 3, 4]
    assert sorted(filled("ring", 17).kept["a"]) == [12, 13, 14, 15, 16]
    assert filled("reservoir", 4).kept["a"] == [0, 1, 2, 3]


def test_a_reservoir_gives_every_example_the_same_chance() -> None:
    counts = Counter(index for seed in range(600) for index in filled("reservoir", 20, seed=seed).kept["a"])
    assert set(counts) == set(range(20))
    assert all(110 <= count <= 190 for count in counts.values())  # 150 expected, standard deviation 10.6


@pytest.mark.parametrize("keep", ["first", "ring", "reservoir"])
def test_a_restored_memory_continues_identically(keep: Any) -> None:
    memory, other = filled(keep, 11), Memory(MemoryPlan(5, keep, None), ["a", "b"], 0)
    other.load_state_dict(json.loads(json.dumps(memory.state_dict())))
    for one in (memory, other):
        one.observe("a", list(range(11, 40)))
    assert memory.kept == other.kept
    assert memory.draw("a", 3, step=9) == other.draw("a", 3, step=9)


def test_draws_are_kept_examples_each_once_and_differ_from_step_to_step() -> None:
    memory = filled("reservoir", 40)
    draws = [memory.draw("a", 3, step) for step in range(20)]
    assert all(len(set(draw)) == 3 and set(draw) <= set(memory.kept["a"]) for draw in draws)
    assert len({tuple(draw) for draw in draws}) > 10
    assert sorted(memory.draw("a", 99, 0)) == sorted(memory.kept["a"])


def test_only_tasks_with_examples_and_not_in_the_step_are_others() -> None:
    memory = filled("first", 3)
    assert memory.others(["b"]) == ["a"]
    assert memory.others(["a"]) == []


@pytest.mark.parametrize("keep", ["first", "ring", "reservoir"])
def test_examples_are_kept_as_if_they_came_one_by_one(keep: Any) -> None:
    together, one_by_one = Memory(MemoryPlan(5, keep, None), ["a"], 3), Memory(MemoryPlan(5, keep, None), ["a"], 3)
    together.observe("a", list(range(100, 103)))
    together.observe("a", list(range(103, 140)))
    for index in range(100, 140):
        one_by_one.observe("a", [index])
    assert together.state_dict() == one_by_one.state_dict()
    if keep == "reservoir":
        kept = list(range(100, 105))
        for number in range(5, 40):
            place = int(seeds.generator(3, "keep", "a", number).integers(number + 1))
            if place < 5:
                kept[place] = 100 + number
        assert together.kept["a"] == kept
