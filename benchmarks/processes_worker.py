"""One of the two processes that processes.py measures. Each line of JSON on its standard input is a job.

The answer is one line of JSON on the standard output. Both processes get the jobs in which they exchange something.
"""

import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from polytask import prepare, read_recipe
from polytask.kernels.overlapped_sums import sums_of_gradients
from polytask.machine import keep_freed_memory
from polytask.processes import ALONE, Processes, join_processes
from polytask.runs.folder import RunFolder
from polytask.runs.session import make_session
from polytask.training import step as training_step
from polytask.types import Draw

RECIPE = Path(__file__).parent.parent / "recipes" / "quickstart.yaml"


@dataclass(frozen=True)
class Timed(Processes):
    """Connected processes that record how long each sum over the processes takes, and how many bytes it has."""

    sums: list[tuple[int, float]] = field(default_factory=list)

    def add_up(self, tensor: Tensor) -> Tensor:
        started = time.perf_counter()
        super().add_up(tensor)
        self.sums.append((tensor.nbytes, time.perf_counter() - started))
        return tensor

    def start_adding_up(self, tensor: Tensor) -> Callable[[], None]:
        started = time.perf_counter()
        wait = super().start_adding_up(tensor)
        seconds = time.perf_counter() - started

        def timed() -> None:
            started = time.perf_counter()
            wait()
            self.sums.append((tensor.nbytes, seconds + time.perf_counter() - started))

        return timed


@dataclass(frozen=True)
class AtTheEnd(Timed):
    """The same, but gradients are sent only when they are waited for: after the backward pass."""

    def start_adding_up(self, tensor: Tensor) -> Callable[[], None]:
        return lambda: self._finish(tensor)

    def _finish(self, tensor: Tensor) -> None:
        self.add_up(tensor)


@dataclass(frozen=True)
class Unconnected(Processes):
    """Processes that divide the steps and exchange nothing: what one computes is the step without the exchange."""

    def add_up(self, tensor: Tensor) -> Tensor:
        return tensor

    def start_adding_up(self, tensor: Tensor) -> Callable[[], None]:
        return lambda: None


class Worker:
    """A session of the quickstart with MiniLM, which takes steps on its own, together with the other, or apart."""

    def __init__(self, folder: Path) -> None:
        keep_freed_memory()
        torch.set_num_threads(1)
        joined = join_processes()
        numbers = joined.rank, joined.count, joined.local_rank, joined.local_count, joined.run
        self.processes = Timed(*numbers)
        self.at_the_end = AtTheEnd(*numbers, self.processes.sums)
        self.session = make_session(
            prepare(read_recipe(RECIPE)), RunFolder(folder), torch.device("cpu"), processes=self.processes
        )
        self.division = self.session.feed.division
        self.parameters = [p for p in self.session.model.parameters() if p.requires_grad]
        self.words = self.session.model.encoder.words.weight
        self.seen_T = torch.zeros(0, dtype=torch.int64)
        """The word ids in this process's part of the step."""

    def steps(self, how: str, batch: int, first: int, count: int, precision: Any, threads: int) -> dict[str, Any]:
        """Take steps with one task each, in turns, from the `first`-th example of every task on.

        Returns the seconds and tokens of this process's part of each step, and the sums over the processes of all.
        """
        session, feed, tasks = self.session, self.session.feed, self.session.model.tasks
        torch.set_num_threads(threads)
        settings = replace(session.settings, precision=precision)
        apart = how == "apart"
        processes = {"alone": ALONE, "apart": Unconnected(self.processes.rank, 2), "at the end": self.at_the_end}.get(
            how, self.processes
        )
        feed.division = None if how == "alone" else self.division
        feed.given = dict.fromkeys(feed.given, first)
        send = self._seen_rows if how == "seen rows" else sums_of_gradients
        setattr(training_step, "sums_of_gradients", send)  # noqa: B010  (mypy: it is not a public name there)
        if processes.several and not apart:
            self.processes.texts("both are here")
        self.processes.sums.clear()
        taken = []
        for number in range(count):
            torch.manual_seed(number)
            tokens = [0]

            def next_batch(task: str = tasks[number % len(tasks)], tokens: list[int] = tokens) -> Any:
                drawn = feed.next_batch([Draw(task, batch)])
                self.seen_T = drawn.together.token_ids_T
                tokens[0] = len(self.seen_T)
                return drawn

            started = time.perf_counter()
            training_step.take_step(
                session.model, session.optimizer, session.objective, settings, next_batch, 0.0, processes
            )
            taken.append((time.perf_counter() - started, tokens[0]))
        torch.set_num_threads(1)
        return {"steps": taken, "sums": list(self.processes.sums)}

    def reduce(self, sizes: Sequence[int], times: int) -> dict[str, Any]:
        """The seconds of an all-reduce of tensors with these numbers of bytes."""
        return {str(size): self._timed(torch.ones(size // 4), times) for size in sizes}

    def _timed(self, tensor: Tensor, times: int) -> list[float]:
        return seconds_of(lambda: self.processes.add_up(tensor), times)

    def update(self, times: int) -> dict[str, Any]:
        """The seconds of clipping and the optimizer's update, and of copying the gradients into one tensor."""
        session, gradients = self.session, self._gradients()
        unconnected = Unconnected(self.processes.rank, 2)

        def update() -> None:
            torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
            session.optimizer.step()

        return {
            "update": seconds_of(update, times),
            "copy": seconds_of(lambda: unconnected.sum_gradients(self.parameters, gradients), times),
        }

    @contextmanager
    def _seen_rows(self, parameters: Sequence[Any], processes: Processes) -> Iterator[None]:
        """An experiment: `sums_of_gradients` that sends only the rows of words that are in the texts of any process."""
        with sums_of_gradients([p for p in parameters if p is not self.words], processes):
            yield
        seen_V = torch.zeros(len(self.words))
        seen_V[self.seen_T] = 1
        union_U = processes.add_up(seen_V).nonzero().squeeze(1)
        grad = self.words.grad
        rows = torch.zeros(len(union_U), self.words.shape[1]) if grad is None else grad[union_U]
        processes.add_up(rows)
        if grad is None:
            grad = torch.zeros_like(self.words)
        self.words.grad = grad.index_copy_(0, union_U, rows)

    def _gradients(self) -> dict[Tensor, Tensor]:
        for parameter in self.parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        return {p: p.grad for p in self.parameters if p.grad is not None}


def seconds_of(action: Callable[[], object], times: int) -> list[float]:
    action()
    seconds = []
    for _ in range(times):
        started = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - started)
    return seconds


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        worker = Worker(Path(folder))
        print(json.dumps({"parameters": sum(p.numel() for p in worker.parameters)}), flush=True)
        jobs: dict[str, Callable[..., dict[str, Any]]] = {
            "steps": worker.steps,
            "reduce": worker.reduce,
            "update": worker.update,
        }
        for line in sys.stdin:
            job = json.loads(line)
            print(json.dumps(jobs[job.pop("job")](**job)), flush=True)


if __name__ == "__main__":
    main()
