"""Batch sizes in proportion to the tasks' sizes, and equally many batches of each."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from polytask.samplers.balanced import Balanced
from polytask.samplers.base import SamplerContext
from polytask.types import Draw


def test_in_turn_with_batches_by_size() -> None:
    sampler = Balanced(SamplerContext({"a": 100, "b": 300, "c": 200}, 8, 0, 75, 1))
    turn = [(Draw("a", 4),), (Draw("b", 12),), (Draw("c", 8),)]
    assert [sampler.next_step() for _ in range(7)] == [*turn, *turn, turn[0]]


def test_an_epoch_holds_each_example_once_in_equally_many_batches() -> None:
    sampler = Balanced(SamplerContext({"a": 100, "b": 300, "c": 200}, 8, 0, 75, 1))
    draws = [draw for _ in range(75) for draw in sampler.next_step()]
    assert Counter(draw.task for draw in draws) == {"a": 25, "b": 25, "c": 25}
    seen: Counter[str] = Counter()
    for draw in draws:
        seen[draw.task] += draw.count
    assert seen == {"a": 100, "b": 300, "c": 200}


def test_no_batch_is_empty() -> None:
    sampler = Balanced(SamplerContext({"tiny": 1, "huge": 10**6, "small": 50}, 8, 0, 50, 1))
    assert sampler.batches == {"tiny": 1, "huge": 22, "small": 1}
    assert Balanced(SamplerContext({"tiny": 1, "huge": 10**6}, 1, 0, 50, 1)).batches == {"tiny": 1, "huge": 1}


@settings(deadline=None)
@given(st.lists(st.integers(1, 10**7), min_size=1, max_size=12), st.integers(1, 256))
def test_their_mean_is_the_batch_size(sizes: list[int], batch_size: int) -> None:
    context = SamplerContext({str(i): size for i, size in enumerate(sizes)}, batch_size, 0, 10, 1)
    counts = [Balanced(context).draws(step)[0].count for step in range(len(sizes))]
    assert sum(counts) == batch_size * len(sizes)
    assert min(counts) >= 1
