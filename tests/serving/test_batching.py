"""The queue: batches, limits, deadlines and crashes. The model is a stand-in that a test can hold."""

import logging
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import Any, cast

import pytest

from polytask import ServingLimits
from polytask.serving.batching import Batcher, BatchReport
from polytask.serving.failures import Failure
from polytask.serving.items import Item

NEVER = float("inf")


class Model:
    """Answers each item with its own name. It waits until it is released, and fails on the item `crash`."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.message = "a secret text"
        self.entered, self.released = threading.Semaphore(0), threading.Event()
        self.released.set()

    def compute(self, items: Sequence[Any]) -> list[Any]:
        self.batches.append([item.name for item in items])
        self.entered.release()
        self.released.wait()
        if any(item.name == "crash" for item in items):
            raise RuntimeError(self.message)
        return [{"task": item.name} for item in items]

    def items(self, *names: str, tokens: int = 10) -> list[Item]:
        return [cast(Item, Named(self, name, tokens)) for name in names]


class Named:
    def __init__(self, model: Model, name: str, tokens: int) -> None:
        self.model, self.name, self.tokens = model, name, tokens


@pytest.fixture
def model() -> Iterator[Model]:
    model = Model()
    yield model
    model.released.set()


@pytest.fixture
def batcher(model: Model) -> Iterator[Batcher]:
    limits = ServingLimits(max_batch_tokens=40, max_queue_tokens=100, max_queue_inputs=10, max_inputs=4, max_wait_ms=0)
    batcher = Batcher(limits)
    yield batcher
    model.released.set()
    batcher.close()


def hold(batcher: Batcher, model: Model) -> "Future[Any]":
    """Starts a batch that does not end before the model is released."""
    model.released.clear()
    held = batcher.submit(model.items("held"), NEVER)
    model.entered.acquire()
    return held


def names(future: "Future[Any]") -> list[str]:
    return [answer["task"] for answer in future.result()]


def test_requests_that_wait_are_computed_together_in_order(batcher: Batcher, model: Model) -> None:
    held = hold(batcher, model)
    jobs = [batcher.submit(model.items(*group), NEVER) for group in (["a", "b"], ["c"], ["d", "e", "f"])]
    assert batcher.tokens == 60
    model.released.set()
    assert [names(job) for job in (held, *jobs)] == [["held"], ["a", "b"], ["c"], ["d", "e", "f"]]
    assert model.batches == [["held"], ["a", "b", "c", "d"], ["e", "f"]]  # 40 tokens at most
    assert batcher.tokens == 0
    assert names(batcher.submit([], NEVER)) == []


def test_a_batch_has_one_model(batcher: Batcher, model: Model) -> None:
    hold(batcher, model)
    other = Model()
    old, new = batcher.submit(model.items("old"), NEVER), batcher.submit(other.items("new"), NEVER)
    model.released.set()
    assert names(old) + names(new) == ["old", "new"]
    assert (model.batches, other.batches) == ([["held"], ["old"]], [["new"]])


def test_a_full_queue_refuses_all_of_a_request(batcher: Batcher, model: Model) -> None:
    hold(batcher, model)
    waiting = [batcher.submit(model.items("a", tokens=40), NEVER) for _ in range(2)]
    with pytest.raises(Failure, match="80 tokens are waiting and the request has 30") as refused:
        batcher.submit(model.items("b", "c", "d"), NEVER)
    assert refused.value.status == 429
    batcher.submit(model.items("b", "c"), NEVER)
    with batcher.admitted(8), pytest.raises(Failure, match="8 inputs are waiting") as refused, batcher.admitted(3):
        pass
    assert refused.value.error_type == "queue_full"
    assert batcher.inputs == 0
    model.released.set()
    assert [names(job) for job in waiting] == [["a"], ["a"]]


def test_an_input_that_waited_too_long_is_not_computed(batcher: Batcher, model: Model) -> None:
    hold(batcher, model)
    late, after = batcher.submit(model.items("late", "later"), 0.0), batcher.submit(model.items("after"), NEVER)
    model.released.set()
    assert names(after) == ["after"]
    with pytest.raises(Failure) as failure:
        late.result()
    assert (failure.value.status, failure.value.error_type) == (503, "deadline_exceeded")
    assert model.batches == [["held"], ["after"]]
    assert batcher.tokens == 0


def test_requests_that_are_given_up_are_not_computed(batcher: Batcher, model: Model) -> None:
    hold(batcher, model)
    given_up, after = batcher.submit(model.items("a"), NEVER), batcher.submit(model.items("after"), NEVER)
    assert given_up.cancel()
    model.released.set()
    assert names(after) == ["after"]
    assert model.batches == [["held"], ["after"]]


def test_a_crash_fails_its_batch_only_and_logs_no_text(
    batcher: Batcher, model: Model, caplog: pytest.LogCaptureFixture
) -> None:
    hold(batcher, model)
    crash, same_batch = batcher.submit(model.items("crash"), NEVER), batcher.submit(model.items("a", "b"), NEVER)
    next_batch = batcher.submit(model.items("c", tokens=30), NEVER)
    with caplog.at_level(logging.ERROR):
        model.released.set()
        for job in (crash, same_batch):
            with pytest.raises(Failure) as failure:
                job.result()
            assert failure.value.status == 500
        assert names(next_batch) == ["c"]
    assert "a batch of 3 inputs failed with RuntimeError" in caplog.text
    assert "secret" not in caplog.text
    assert not batcher.last_batch_failed


def test_what_is_queued_is_computed_before_the_thread_stops(model: Model) -> None:
    reports: list[BatchReport] = []
    batcher = Batcher(ServingLimits(max_wait_ms=1e9, deadline_ms=1e10).checked(10, 10), reports.append)
    jobs = [batcher.submit(model.items(name), NEVER) for name in "abc"]  # they would wait for others
    batcher.close()
    assert [names(job) for job in jobs] == [["a"], ["b"], ["c"]]
    with pytest.raises(Failure, match="shutting down"):
        batcher.submit(model.items("d"), NEVER)
    assert [len(report.items) for report in reports] == [3]
    assert not reports[0].failed
    assert all(seconds >= 0 for seconds in reports[0].queued_seconds)


def test_a_full_batch_does_not_wait(model: Model) -> None:
    limits = ServingLimits(max_batch_tokens=20, max_wait_ms=1e9, deadline_ms=1e10)
    batcher = Batcher(limits.checked(10, 10))
    assert names(batcher.submit(model.items("a", "b"), NEVER)) == ["a", "b"]
    batcher.close()
