"""The queue: batches, limits, deadlines and crashes. The model is a stand-in that a test can hold."""

import logging
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import Any, cast

import pytest

from polytask import ServingLimits
from polytask.serving.batching import Batcher
from polytask.serving.failures import Failure
from polytask.serving.items import Item
from polytask.serving.jobs import BatchReport

NEVER = float("inf")


class Clock:
    """A time that only a test changes."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


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
    batcher = Batcher(limits.checked(10, 10))
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


def test_too_few_answers_and_an_error_in_the_report_do_not_stop_the_thread(model: Model) -> None:
    reports: list[BatchReport] = []

    def observe(report: BatchReport) -> None:
        reports.append(report)
        raise RuntimeError

    batcher = Batcher(ServingLimits(max_wait_ms=0).checked(10, 10), observe)
    compute = model.compute
    model.compute = lambda items: compute(items)[1:]  # type: ignore[method-assign]
    with pytest.raises(Failure, match="internal error"):
        batcher.submit(model.items("a"), NEVER).result()
    model.compute = compute  # type: ignore[method-assign]
    assert names(batcher.submit(model.items("b"), NEVER)) == ["b"]
    batcher.close()
    assert [report.failed for report in reports] == [True, False]


def test_what_is_queued_is_computed_before_the_thread_stops(model: Model) -> None:
    reports: list[BatchReport] = []
    batcher = Batcher(ServingLimits(max_wait_ms=1e9, deadline_ms=1e10).checked(10, 10), reports.append)
    hold(batcher, model)
    jobs = [batcher.submit(model.items(name), NEVER) for name in "abc"]
    closing = threading.Thread(target=batcher.close)
    closing.start()
    model.released.set()
    closing.join()
    assert [names(job) for job in jobs] == [["a"], ["b"], ["c"]]
    with pytest.raises(Failure, match="shutting down"):
        batcher.submit(model.items("d"), NEVER)
    assert [len(report.items) for report in reports] == [1, 3]
    assert not reports[1].failed
    assert all(seconds >= 0 for seconds in reports[1].queued_seconds)


# --- how long a batch waits -------------------------------------------------------------------------------------------
@pytest.fixture
def patient(model: Model) -> Iterator[Batcher]:
    """Waits for hours for the inputs that it expects. A batch is full with 200 tokens, and 50 are enough."""
    seconds = {"max_wait_ms": 1e9, "max_queue_seconds": 1e6, "deadline_ms": 1e10}
    limits = ServingLimits(max_batch_tokens=200, **seconds).checked(10, 10)
    batcher = Batcher(limits, clock=Clock())
    yield batcher
    model.released.set()
    batcher.close()


def finish(batcher: Batcher, model: Model, held: "Future[Any]", seconds: float) -> None:
    """Ends the batch that is held after so many seconds."""
    assert isinstance(batcher.clock, Clock)
    batcher.clock.now += seconds
    model.released.set()
    held.result()


def test_a_batch_waits_for_the_client_that_was_just_answered(patient: Batcher, model: Model) -> None:
    held = hold(patient, model)
    a = patient.submit(model.items("a"), NEVER)
    finish(patient, model, held, 10_000.0)
    assert (names(patient.submit(model.items("b"), NEVER)), names(a)) == (["b"], ["a"])
    assert model.batches == [["held"], ["a", "b"]]  # and not one after the other


def test_a_single_client_does_not_wait_for_others(patient: Batcher, model: Model) -> None:
    assert [names(patient.submit(model.items(name), NEVER)) for name in "abc"] == [["a"], ["b"], ["c"]]


def test_enough_tokens_do_not_wait(patient: Batcher, model: Model) -> None:
    held = hold(patient, model)
    jobs = [patient.submit(model.items(name, tokens=25), NEVER) for name in "ab"]
    finish(patient, model, held, 10_000.0)
    assert [names(job) for job in jobs] == [["a"], ["b"]]


# --- seconds of work --------------------------------------------------------------------------------------------------
@pytest.fixture
def slow(model: Model) -> Iterator[Batcher]:
    """Has computed a token per second so far, and accepts requests if they wait for up to five seconds."""
    limits = ServingLimits(max_queue_seconds=5, max_wait_ms=0, max_inputs=4).checked(10, 10)
    batcher = Batcher(limits, clock=Clock())
    finish(batcher, model, hold(batcher, model), 10.0)
    yield batcher
    model.released.set()
    batcher.close()


def test_a_request_behind_too_many_seconds_of_work_is_refused(slow: Batcher, model: Model) -> None:
    held = hold(slow, model)
    assert slow.seconds == 10
    for refused in (lambda: slow.submit(model.items("a", tokens=1), NEVER), slow.admitted(1).__enter__):
        with pytest.raises(Failure, match=r"takes about 10.0 s \(max_queue_seconds is 5\)") as failure:
            refused()
        assert failure.value.status == 429
        assert failure.value.headers == {"retry-after": "5"}  # when half of it is computed
    assert isinstance(slow.clock, Clock)
    slow.clock.now += 4
    assert slow.seconds == 6
    finish(slow, model, held, 6.0)
    assert slow.seconds == 0
    assert names(slow.submit(model.items("a", tokens=1), NEVER)) == ["a"]


def test_requests_are_accepted_up_to_the_limit(slow: Batcher, model: Model) -> None:
    slow.pace.seconds /= 4
    hold(slow, model)  # 2.5 seconds
    slow.submit(model.items("a"), NEVER)  # another 2.5
    slow.submit(model.items("b", tokens=1), NEVER)
    with pytest.raises(Failure, match=r"about 5\.2 s"):
        slow.submit(model.items("c", tokens=1), NEVER)


def test_an_idle_server_accepts_a_request_of_any_length(slow: Batcher, model: Model) -> None:
    assert names(slow.submit(model.items("a", "b", tokens=1000), NEVER)) == ["a", "b"]


def test_clients_are_never_told_to_wait_longer_than_a_deadline(slow: Batcher, model: Model) -> None:
    slow.pace.seconds *= 1000
    hold(slow, model)
    with pytest.raises(Failure) as failure:
        slow.submit(model.items("a"), NEVER)
    assert failure.value.headers == {"retry-after": "30"}


def test_a_batch_that_fails_does_not_change_the_pace(slow: Batcher, model: Model) -> None:
    before = slow.pace.seconds_for(1)
    with pytest.raises(Failure):
        slow.submit(model.items("crash"), NEVER).result()
    assert slow.pace.seconds_for(1) == before == 1
