"""One queue for the inputs of all requests and tasks, and one thread that computes them in batches. Knows no HTTP."""

import logging
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager

from polytask.serving.failures import Failure
from polytask.serving.gathering import ENOUGH_TOKENS, Gathering
from polytask.serving.items import Answer, Item
from polytask.serving.jobs import BatchReport, Entry, Job
from polytask.serving.limits import CheckedLimits
from polytask.serving.pace import SMALL_BATCH, Pace

log = logging.getLogger(__name__)


class Batcher:
    """Gathers items into batches of one model and computes them in one thread, in the order of their arrival.

    A batch is computed when it has enough tokens, or when no more inputs are expected: see `Gathering`. A request is
    admitted if those before it take at most `max_queue_seconds` at the pace of recent batches, so that one within all
    other limits is always admitted by an idle server.
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
        self.pace = Pace(least=min(SMALL_BATCH, int(ENOUGH_TOKENS * limits.max_batch_tokens)))
        self.last_batch_failed = False
        self._computing_tokens = 0
        self._computing_since = 0.0
        self._gathering = Gathering()
        self._entries: deque[Entry] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="polytask-compute", daemon=True)
        self._thread.start()

    # --- requests -----------------------------------------------------------------------------------------------------
    @property
    def seconds(self) -> float:
        """The estimated seconds until what is waiting and being computed is answered."""
        passed = self.clock() - self._computing_since
        computing = max(self.pace.seconds_for(self._computing_tokens) - passed, 0.0)
        return self.pace.seconds_for(self.tokens) + computing

    @contextmanager
    def admitted(self, inputs: int) -> Iterator[None]:
        """Counts a request's inputs inside the context; raises a Failure if there is too much to do already."""
        with self._changed:
            self._check_seconds()
            if self.inputs + inputs > self.limits.max_queue_inputs:
                raise self._full(
                    f"{self.inputs:,} inputs are waiting (max_queue_inputs is {self.limits.max_queue_inputs:,})"
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
            self._check_seconds()  # again: others were queued while this one was tokenized
            most = self.limits.max_queue_tokens
            if self.tokens + tokens > most:
                found = f"{self.tokens:,} tokens are waiting and the request has {tokens:,}"
                raise self._full(f"{found} (max_queue_tokens is {most:,})")
            self.tokens += tokens
            self._entries += [Entry(job, index) for index in range(len(items))]
            self._changed.notify()
        return job.future

    def _check_seconds(self) -> None:
        most = self.limits.max_queue_seconds
        if self.seconds > most:
            found = f"what is waiting takes about {self.seconds:.1f} s (max_queue_seconds is {most:g})"
            raise self._full(found, self.seconds - most)

    def _full(self, found: str, seconds: float | None = None) -> Failure:
        """A refusal that says after how many seconds there is room, or nothing is waiting any more."""
        seconds = min(self.seconds if seconds is None else seconds, self.limits.deadline_ms / 1000)
        return Failure("queue_full", f"{found}; try again later", seconds)

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

    # --- the thread ---------------------------------------------------------------------------------------------------
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
        """How long the items that are waiting still wait for others."""
        if self._closed or self.tokens >= ENOUGH_TOKENS * self.limits.max_batch_tokens:
            return 0
        first, last = self._entries[0].job.submitted, self._entries[-1].job.submitted
        return self._gathering.end(len(self._entries), first, last, self.limits.max_wait_ms / 1000) - self.clock()

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
        self._computing_tokens, self._computing_since = sum(entry.item.tokens for entry in batch), self.clock()
        return batch

    def _pop(self) -> Entry:
        entry = self._entries.popleft()
        self.tokens -= entry.item.tokens
        return entry

    def _compute(self, batch: Sequence[Entry]) -> None:
        started = self.clock()
        items = [entry.item for entry in batch]
        answers: list[Answer] | None = None
        try:
            answers = items[0].model.compute(items)
            assert len(answers) == len(items)
        except Exception as error:  # whatever it is, later batches must be computed
            log.error("a batch of %d inputs failed with %s:\n%s", len(items), type(error).__name__, _frames(error))
            answers = None
        finished = self.clock()
        queued = [started - entry.job.submitted for entry in batch]
        report = BatchReport(items, queued, finished - started, failed=answers is None)
        self._learn(report, started, finished)
        self._answer(batch, answers)
        try:
            self.observe(report)
        except Exception as error:  # the same holds for what only counts
            log.error("a batch could not be counted: %s\n%s", type(error).__name__, _frames(error))

    def _learn(self, report: BatchReport, started: float, finished: float) -> None:
        """Updates what the next decisions depend on, before clients can react to their answers."""
        self.last_batch_failed = report.failed
        with self._changed:
            self._computing_tokens = 0
            self._gathering.computed(len(report.items), len(self._entries), started, finished)
            if not report.failed:  # a failure may take less time
                self.pace.computed(report.tokens, report.computing_seconds)

    def _answer(self, batch: Sequence[Entry], answers: Sequence[Answer] | None) -> None:
        if answers is None:
            for entry in batch:
                entry.job.fail(Failure("batch_failed", "an internal error occurred while the input was computed"))
            return
        for entry, answer in zip(batch, answers, strict=True):
            entry.job.finish(entry.index, answer)


def _frames(error: Exception) -> str:
    """Where an error was raised, without its message, which may quote a text: no text may be in a log."""
    return "".join(traceback.format_tb(error.__traceback__))
