"""One queue for the inputs of all requests and tasks, and one thread that computes them in batches. Knows no HTTP."""

import logging
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from polytask.serving.failures import Failure
from polytask.serving.items import Answer, Item
from polytask.serving.limits import CheckedLimits

log = logging.getLogger(__name__)


@dataclass(eq=False)
class Job:
    """The items of one request. Its future has their answers, or is a Failure."""

    items: Sequence[Item]
    deadline: float
    submitted: float
    future: "Future[list[Answer]]" = field(default_factory=Future)
    answers: dict[int, Answer] = field(default_factory=dict)

    def finish(self, index: int, answer: Answer) -> None:
        self.answers[index] = answer
        if len(self.answers) == len(self.items):
            with suppress(InvalidStateError):  # the request was given up, or another of its items failed
                self.future.set_result([self.answers[i] for i in range(len(self.items))])

    def fail(self, failure: Failure) -> None:
        with suppress(InvalidStateError):
            self.future.set_exception(failure)


@dataclass(frozen=True)
class Entry:
    """One item in the queue."""

    job: Job
    index: int

    @property
    def item(self) -> Item:
        return self.job.items[self.index]


@dataclass(frozen=True)
class BatchReport:
    """What happened to a batch."""

    items: Sequence[Item]
    queued_seconds: Sequence[float]
    computing_seconds: float
    failed: bool


class Batcher:
    """Gathers items into batches of one model and computes them in one thread, in the order of their arrival.

    A batch is computed when it has `max_batch_tokens`, or when its first item has waited for `max_wait_ms`.
    """

    def __init__(
        self,
        limits: CheckedLimits,
        observe: Callable[[BatchReport], None] = lambda report: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.limits, self.observe, self.clock = limits, observe, clock
        self.inputs = 0
        """Inputs that are waiting or being computed."""
        self.tokens = 0
        """Tokens in the queue."""
        self.last_batch_failed = False
        self._entries: deque[Entry] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="polytask-compute", daemon=True)
        self._thread.start()

    @contextmanager
    def admitted(self, inputs: int) -> Iterator[None]:
        """Counts a request's inputs inside the context; raises a Failure if there are too many already."""
        with self._changed:
            if self.inputs + inputs > self.limits.max_queue_inputs:
                raise Failure(
                    "queue_full",
                    f"{self.inputs:,} inputs are waiting (max_queue_inputs is "
                    f"{self.limits.max_queue_inputs:,}); try again later",
                )
            self.inputs += inputs
        try:
            yield
        finally:
            with self._changed:
                self.inputs -= inputs

    def submit(self, items: Sequence[Item], deadline: float) -> "Future[list[Answer]]":
        """Queues the items of a request; raises a Failure if the queue has no room for all of them."""
        job, tokens = Job(items, deadline, self.clock()), sum(item.tokens for item in items)
        if not items:
            job.future.set_result([])
            return job.future
        with self._changed:
            if self._closed:
                raise Failure("shutting_down", "the server is shutting down")
            most = self.limits.max_queue_tokens
            if self.tokens + tokens > most:
                raise Failure(
                    "queue_full",
                    f"{self.tokens:,} tokens are waiting and the request has {tokens:,} "
                    f"(max_queue_tokens is {most:,}); try again later",
                )
            self.tokens += tokens
            self._entries += [Entry(job, index) for index in range(len(items))]
            self._changed.notify()
        return job.future

    def waiting(self) -> list[Item]:
        """The items in the queue."""
        with self._changed:
            return [entry.item for entry in self._entries]

    def close(self) -> None:
        """Computes what is in the queue, and stops the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while batch := self._next_batch():
            self._compute(batch)
            del batch  # which holds its model: it may have been replaced

    def _next_batch(self) -> list[Entry]:
        """Waits for the next batch; an empty one means that the batcher is closed."""
        with self._changed:
            while True:
                self._drop_finished()
                if not self._entries and self._closed:
                    return []
                left = self._seconds_left() if self._entries else None
                if left is not None and left <= 0:
                    return self._take()
                self._changed.wait(left)

    def _seconds_left(self) -> float:
        """How long the first item still waits for others."""
        if self._closed or self.tokens >= self.limits.max_batch_tokens:
            return 0
        return self._entries[0].job.submitted + self.limits.max_wait_ms / 1000 - self.clock()

    def _drop_finished(self) -> None:
        """Removes items at the front of the queue that nobody waits for any more."""
        while self._entries:
            job = self._entries[0].job
            if not job.future.done() and self.clock() >= job.deadline:
                job.fail(Failure("deadline_exceeded", "the request waited longer than deadline_ms"))
            if not job.future.done():
                return
            self._pop()

    def _take(self) -> list[Entry]:
        batch = [self._pop()]
        tokens = batch[0].item.tokens
        self._drop_finished()
        while self._entries and self._entries[0].item.model is batch[0].item.model:
            tokens += self._entries[0].item.tokens
            if tokens > self.limits.max_batch_tokens:
                break
            batch.append(self._pop())
            self._drop_finished()
        return batch

    def _pop(self) -> Entry:
        entry = self._entries.popleft()
        self.tokens -= entry.item.tokens
        return entry

    def _compute(self, batch: Sequence[Entry]) -> None:
        started = self.clock()
        items = [entry.item for entry in batch]
        try:
            answers = items[0].model.compute(items)
        except Exception as error:  # whatever it is, later batches must be computed
            # The error's message may quote a text, which must not be in a log.
            frames = "".join(traceback.format_tb(error.__traceback__))
            log.error("a batch of %d inputs failed with %s:\n%s", len(items), type(error).__name__, frames)
            self.last_batch_failed = True
            for entry in batch:
                entry.job.fail(Failure("batch_failed", "an internal error occurred while the input was computed"))
        else:
            self.last_batch_failed = False
            for entry, answer in zip(batch, answers, strict=True):
                entry.job.finish(entry.index, answer)
        queued = [started - entry.job.submitted for entry in batch]
        self.observe(BatchReport(items, queued, self.clock() - started, self.last_batch_failed))
