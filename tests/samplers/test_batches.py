"""Samplers in a DataLoader: the batches of a run, every example once per epoch of its task, and resuming."""

import itertools
from collections import Counter
from typing import Any

import numpy as np
import pytest
from torch.utils.data import ConcatDataset, DataLoader

from polytask.samplers import SAMPLERS, Mixed, Proportional, RoundRobin, TaskBatchSampler
from polytask.samplers.base import SamplerContext
from polytask.text.packing import Packer
from polytask.training.feed import Feed
from polytask.types import UserError

SIZES = {"a": 23, "b": 7, "c": 50}
OPTIONS: dict[str, dict[str, Any]] = {"weights": {"weights": {"a": 1.0, "b": 2.0, "c": 1.0}}}


def batches(name: str = "mixed", **more: Any) -> TaskBatchSampler:
    return TaskBatchSampler(SAMPLERS[name], SIZES, 8, epochs=3, **{**OPTIONS.get(name, {}), **more})


def rows(task: str) -> list[tuple[str, int]]:
    return [(task, index) for index in range(SIZES[task])]


class Numbers:
    def __init__(self, count: int) -> None:
        self.labels = np.zeros(count, dtype=np.float32)

    def __len__(self) -> int:
        return len(self.labels)


@pytest.mark.parametrize("name", SAMPLERS)
def test_the_batches_are_those_of_a_run(name: str) -> None:
    under_test = batches(name, seed=5)
    loader = DataLoader(ConcatDataset([rows(task) for task in SIZES]), batch_sampler=under_test, collate_fn=list)  # type: ignore[arg-type]
    assert len(loader) == len(under_test) == 10
    sampler = SAMPLERS[name](SamplerContext(SIZES, 8, 5, 10, 3), **OPTIONS.get(name, {}))
    feed: Any = Feed({task: Numbers(size) for task, size in SIZES.items()}, Packer(tuple(SIZES), 2, 3, 8), 5)  # type: ignore[misc]
    for _epoch in range(3):
        for found in loader:
            expected = [(draw.task, index) for draw in sampler.next_step() for index in feed.next_indices(draw)]
            assert found == sorted(expected, key=lambda row: row[0])


def test_each_example_once_before_one_comes_again() -> None:
    drawn = list(
        itertools.chain.from_iterable(itertools.chain(*(batches_ for batches_ in [batches("proportional")] * 3)))
    )
    of_b = [index for index in drawn if 23 <= index < 30]
    assert len(of_b) > 7
    assert sorted(of_b[:7]) == list(range(23, 30))
    assert max(drawn) < sum(SIZES.values())


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("steps", [0, 3, 10, 17])
def test_the_state_is_enough_to_resume(name: str, steps: int) -> None:
    straight, stopped = batches(name), batches(name)
    expected = [batch for _ in range(3) for batch in straight]
    endless = itertools.chain.from_iterable(iter(stopped) for _ in range(3))
    assert list(itertools.islice(endless, steps)) == expected[:steps]
    resumed = batches(name)
    resumed.load_state_dict(stopped.state_dict())
    rest = list(resumed)
    assert len(rest) == 10 - steps % 10
    assert rest == expected[steps : steps + len(rest)]
    assert list(resumed) == expected[steps + len(rest) :][:10]


def test_seeds_and_epochs() -> None:
    assert list(batches(seed=1)) == list(batches(seed=1))
    assert list(batches(seed=1)) != list(batches(seed=2))
    under_test = batches()
    assert list(under_test) != list(under_test)


def test_workers_give_the_same_batches() -> None:
    data: Any = ConcatDataset([rows(task) for task in SIZES])  # type: ignore[arg-type]
    plain, parallel = (list(DataLoader(data, batch_sampler=batches(), collate_fn=list, num_workers=n)) for n in (0, 2))
    assert plain == parallel


def test_shares_of_the_tasks() -> None:
    found = TaskBatchSampler(Mixed, {"a": 300, "b": 100}, 8, steps_per_epoch=200)
    counts = Counter(index < 300 for batch in found for index in batch)
    assert counts == {True: 1200, False: 400}
    assert [len(batch) for batch in TaskBatchSampler(RoundRobin, {"a": 3}, 5)] == [5]


@pytest.mark.parametrize(("sizes", "batch_size"), [({"a": 0}, 4), ({}, 4), ({"a": 3}, 0)])
def test_sizes_below_one(sizes: dict[str, int], batch_size: int) -> None:
    with pytest.raises(UserError, match="must be at least 1"):
        TaskBatchSampler(Proportional, sizes, batch_size)


def test_a_name_in_place_of_a_class() -> None:
    name: Any = "mixed"
    with pytest.raises(UserError, match=r"method: must be a class of polytask\.samplers, .*, found 'mixed'"):
        TaskBatchSampler(name, {"a": 3}, 4)
