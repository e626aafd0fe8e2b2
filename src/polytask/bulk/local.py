"""The engine `local`: shards are predicted by processes on this machine, or by this process.

The death of a worker costs the shard that it was working on, which is given to another worker. Knows processes; knows
no model and no file.
"""

import json
import os
import selectors
import signal
import subprocess
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any

from polytask.bulk.attempts import ATTEMPTS
from polytask.bulk.predicting import Job, ShardPredictor, ShardReport
from polytask.bulk.shards import Shard
from polytask.child_processes import python_module
from polytask.disk.records import convert
from polytask.machine import usable_cores
from polytask.serving.predictor import Predictor
from polytask.types import UserError

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS")
"""Environment variables with the number of threads of PyTorch's libraries and of the tokenizer."""
PATIENCE = 10.0
"""Seconds in which a worker must end after it was asked to."""


def predict_in_process(job: Job, shards: Sequence[Shard], predictor: Predictor | None) -> Iterator[ShardReport]:
    """Predicts shards in this process, with a predictor that is loaded already, if there is one."""
    own = ShardPredictor(job, predictor)
    for shard in shards:
        yield own.predict(shard)


def predict_in_workers(job: Job, shards: Sequence[Shard], workers: int, gpus: int) -> Generator[ShardReport]:
    """Predicts shards in worker processes and yields their reports. Closing the iterator ends the workers."""
    waiting = deque((shard, 1) for shard in shards)
    count = min(workers, len(shards))
    threads = max(1, usable_cores() // count)
    running: list[_Worker] = []
    deaths = 0
    try:
        for number in range(count):
            device = f"cuda:{number % gpus}" if gpus else job.device
            running.append(_Worker(replace(job, device=device, threads=threads)))
        while waiting or any(worker.shard for worker in running):
            for worker in _wait(running):
                answer = worker.read()
                if answer is None:
                    deaths = 0 if worker.ready else deaths + 1
                    if deaths >= ATTEMPTS:
                        raise UserError(
                            f"predict: workers end before they are ready, the last one {worker.how_ended()}"
                        )
                    running.remove(worker)
                    yield from _give_back(worker, waiting)
                    worker.end()
                    if waiting:
                        running.append(_Worker(worker.job))
                    continue
                yield from worker.understand(answer)
                if waiting and not worker.ending:
                    worker.give(*waiting.popleft())
    finally:
        for worker in running:
            worker.process.terminate()
        for worker in running:
            worker.end()


def _give_back(worker: "_Worker", waiting: "deque[tuple[Shard, int]]") -> Iterator[ShardReport]:
    """Puts the shard of a worker that has ended back in front, or reports that it failed too often."""
    if worker.shard is None:
        return
    if worker.attempts < ATTEMPTS:
        waiting.appendleft((worker.shard, worker.attempts + 1))
        return
    problem = f"its worker {worker.how_ended()} in the last of {ATTEMPTS} attempts"
    yield ShardReport(worker.shard, computed=False, error=problem, attempts=worker.attempts)


def _wait(workers: "Sequence[_Worker]") -> "list[_Worker]":
    """Waits until workers have answered or ended, and returns them."""
    with selectors.DefaultSelector() as selector:
        for worker in workers:
            selector.register(worker.answers, selectors.EVENT_READ, worker)
        return [key.data for key, _ in selector.select()]


class _Worker:
    """A worker process, and the shard that it is working on."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.ready, self.ending = False, False
        self.shard: Shard | None = None
        self.attempts = 0
        environment = {**os.environ, **dict.fromkeys(THREADS, str(job.threads))}
        self.process = subprocess.Popen(
            python_module("polytask.bulk.worker"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.requests, self.answers = self.process.stdin, self.process.stdout
        self._send(asdict(job))

    def give(self, shard: Shard, attempts: int) -> None:
        self.shard, self.attempts = shard, attempts
        self._send({"shard": asdict(shard), "attempts": attempts})

    def _send(self, content: dict[str, Any]) -> None:
        with suppress(BrokenPipeError):  # it has ended, which `read` will find
            self.requests.write(json.dumps(content) + "\n")
            self.requests.flush()

    def read(self) -> dict[str, Any] | None:
        """The next answer; None if the worker has ended. A line that was cut off is no answer."""
        line = self.answers.readline()
        answer: dict[str, Any] | None = json.loads(line) if line.endswith("\n") else None
        return answer

    def understand(self, answer: dict[str, Any]) -> Iterator[ShardReport]:
        """Takes note of an answer, and yields the report in it if the worker's shard has come to its end."""
        if "error" in answer and "shard" not in answer:
            raise UserError(answer["error"])  # it cannot load the model: no other worker could
        self.ready = True
        if "shard" not in answer:
            return
        report: ShardReport = convert(answer, ShardReport, "polytask.bulk.local")
        self.attempts, self.ending = report.attempts, report.then == "replace"
        if not self.ending or self.attempts >= ATTEMPTS:
            self.shard = None
            yield report

    def how_ended(self) -> str:
        code = self.process.wait()
        if code == -signal.SIGKILL:
            return "was killed (signal 9, which is also what happens when memory runs out: use fewer workers)"
        return f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"

    def end(self) -> None:
        """Waits for the end of the process, and forces it after a while."""
        with suppress(BrokenPipeError):
            self.requests.close()
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.answers.close()
