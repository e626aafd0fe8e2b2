"""One block of steps for each task, in the recipe's order, in every epoch."""

from collections import Counter
from itertools import groupby, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polytask.samplers.base import SamplerContext, divide
from polytask.samplers.sequential import Sequential


def epoch(sampler: Sequential) -> list[str]:
    draws = [sampler.next_step() for _ in range(sampler.context.steps_per_epoch)]
    assert all(len(step) == 1 and step[0].count == sampler.context.batch_size for step in draws)
    return [step[0].task for step in draws]


def test_task_after_task_in_every_epoch() -> None:
    sampler = Sequential(SamplerContext({"b": 40, "a": 80, "c": 16}, 8, 0, 17, 3))
    for _ in range(3):
        assert epoch(sampler) == ["b"] * 5 + ["a"] * 10 + ["c"] * 2


def test_equal_shares() -> None:
    sampler = Sequential(SamplerContext({"b": 40, "a": 80, "c": 16}, 8, 0, 10, 2), shares="equal")
    assert epoch(sampler) == epoch(sampler) == ["b"] * 4 + ["a"] * 3 + ["c"] * 3


def test_a_usual_epoch_holds_each_example_about_once() -> None:
    sizes = {"sst": 8544, "quora": 283_010, "sts": 6040}
    steps = -(-sum(sizes.values()) // 32)
    counts = Counter(epoch(Sequential(SamplerContext(sizes, 32, 0, steps, 1))))
    assert all(abs(counts[task] - size / 32) < 1 for task, size in sizes.items())


def test_a_tiny_task_has_its_step() -> None:
    counts = Counter(epoch(Sequential(SamplerContext({"tiny": 1, "huge": 10**6}, 8, 0, 50, 1))))
    assert counts == {"tiny": 1, "huge": 49}


@pytest.mark.parametrize("steps", [1, 2])
def test_fewer_steps_than_tasks_leave_none_out(steps: int) -> None:
    sampler = Sequential(SamplerContext({"a": 1, "b": 900, "c": 30}, 8, 0, steps, 6))
    assert [sampler.next_step()[0].task for _ in range(6)] == ["a", "b", "c", "a", "b", "c"]


SIZES = st.lists(st.integers(1, 10**7), min_size=1, max_size=12)


@settings(deadline=None)
@given(SIZES, st.integers(0, 500))
def test_steps_are_divided_by_size(sizes: list[int], more: int) -> None:
    total = len(sizes) + more
    by_name = {str(i): size for i, size in enumerate(sizes)}
    counts = divide(total, by_name)
    assert sum(counts.values()) == total
    assert min(counts.values()) >= 1
    pairs = sorted((size, counts[task]) for task, size in by_name.items())
    assert all(one[1] <= two[1] or one[0] == two[0] for one, two in pairwise(pairs))
    exact = {task: total * size / sum(sizes) for task, size in by_name.items()}
    if min(exact.values()) >= 1:  # no share was rounded up to one: the plain largest remainder
        assert all(abs(counts[task] - exact[task]) < 1 for task in exact)


@settings(deadline=None)
@given(SIZES, st.integers(1, 60), st.integers(1, 4))
def test_blocks_in_order(sizes: list[int], steps: int, epochs: int) -> None:
    tasks = [str(i) for i in range(len(sizes))]
    sampler = Sequential(SamplerContext(dict(zip(tasks, sizes, strict=True)), 8, 0, steps, epochs))
    if steps >= len(tasks):
        for _ in range(epochs):
            assert [task for task, _ in groupby(epoch(sampler))] == tasks
