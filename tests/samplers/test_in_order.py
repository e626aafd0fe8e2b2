"""One stage for each task over the whole run, in order, with the number of steps of its share."""

from itertools import groupby

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polytask.samplers.base import SamplerContext
from polytask.samplers.in_order import InOrder
from polytask.types import Stage, UserError


def taken(sampler: InOrder) -> list[str]:
    steps = sampler.context.steps_per_epoch * sampler.context.epochs
    draws = [sampler.next_step() for _ in range(steps)]
    assert all(len(step) == 1 and step[0].count == sampler.context.batch_size for step in draws)
    return [step[0].task for step in draws]


def context(sizes: dict[str, int], steps: int = 10, epochs: int = 2) -> SamplerContext:
    return SamplerContext(sizes, 8, 0, steps, epochs)


def test_no_task_comes_back_in_a_later_epoch() -> None:
    sampler = InOrder(context({"b": 50, "a": 40, "c": 10}))
    assert taken(sampler) == ["b"] * 10 + ["a"] * 8 + ["c"] * 2
    assert sampler.stages == (Stage("b", 1, 10), Stage("a", 11, 18), Stage("c", 19, 20))


def test_an_order_of_ones_own_and_equal_shares() -> None:
    sampler = InOrder(context({"b": 50, "a": 1, "c": 10}, 6, 2), order=("c", "b", "a"), shares="equal")
    assert taken(sampler) == ["c"] * 4 + ["b"] * 4 + ["a"] * 4


def test_with_sizes_every_example_is_seen_once_an_epoch() -> None:
    sizes = {"sst": 8544, "quora": 39_497, "sts": 6040}
    sampler = InOrder(context(sizes, -(-sum(sizes.values()) // 8), 3))
    for stage in sampler.stages:
        assert abs((stage.last - stage.first + 1) - 3 * sizes[stage.task] / 8) < 3


@pytest.mark.parametrize(
    ("order", "message"),
    [
        (("a", "x"), "sampler.order: there is no trained task or group 'x'"),
        (("a",), r"sampler.order: must list every task once \(a, b\), found a"),
        (("a", "b", "a"), "sampler.order: must list every task once"),
    ],
)
def test_orders_that_are_refused(order: tuple[str, ...], message: str) -> None:
    with pytest.raises(UserError, match=message):
        InOrder(context({"a": 1, "b": 1}), order=order)


def test_fewer_steps_than_tasks_are_refused() -> None:
    with pytest.raises(UserError, match="3 tasks need at least 3 steps, found 2"):
        InOrder(context({"a": 1, "b": 1, "c": 1}, 1, 2))


@settings(deadline=None)
@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=8), st.integers(1, 30), st.integers(1, 4))
def test_stages_are_what_is_drawn(sizes: list[int], steps: int, epochs: int) -> None:
    tasks = [str(i) for i in range(len(sizes))]
    if steps * epochs < len(tasks):
        return
    sampler = InOrder(context(dict(zip(tasks, sizes, strict=True)), steps, epochs))
    found = taken(sampler)
    assert [task for task, _ in groupby(found)] == tasks
    for stage in sampler.stages:
        assert set(found[stage.first - 1 : stage.last]) == {stage.task}
    assert sampler.stages[-1].last == len(found)
