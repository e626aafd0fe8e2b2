"""The requests of a queue: their items, and the answers that arrive one after another. Knows no thread and no HTTP."""

from collections.abc import Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field

from polytask.serving.failures import Failure
from polytask.serving.items import Answer, Item


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

    @property
    def tokens(self) -> int:
        return sum(item.tokens for item in self.items)
