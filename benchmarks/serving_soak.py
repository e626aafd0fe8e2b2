"""The long test of a server: requests of all kinds for an hour, every answer checked. See `serving.py soak`."""

import asyncio
import json
import os
import random
import signal
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from serving_load import Connection, memory_mb

import polytask

CLIENTS = 8
POOL = 400
TOLERANCE = 1e-4
RELOAD_SECONDS = 300
STATE = ("/ready", "/live", "/health", "/tasks", "/info", "/metrics")
BUSY = 429
"""The status of a request that must be sent again later."""
GROWTH = 1.05
"""The memory at the end must be less than this times that after the second reload."""
MINUTES = 10
"""Memory is the median of so many minutes: a single one depends on the batch that is computed."""


class Expected:
    """The right answers, computed without a server."""

    def __init__(self, run: Path, texts: Sequence[str]) -> None:
        model = polytask.load(run)
        self.texts, self.tasks = texts, model.tasks
        self.predictions = {task: model.predict(task, list(texts)) for task in self.tasks}
        self.vectors = model.embed(list(texts), normalize=False)

    def is_right(self, index: int, answer: dict[str, Any], tasks: Sequence[str]) -> bool:
        """Whether the answer to one text has the right label and numbers for these tasks."""
        found = answer.get("predictions", {})
        return set(found) == set(tasks) and all(is_same(found[task], self.predictions[task][index]) for task in tasks)


def is_same(found: dict[str, Any], expected: polytask.Prediction) -> bool:
    if isinstance(expected.label, float):
        return bool(abs(found["label"] - expected.label) < TOLERANCE)
    expected_ones = expected.probabilities or {}
    return all(abs(found["probabilities"][name] - value) < TOLERANCE for name, value in expected_ones.items())


class Soak:
    """Clients that send requests of all kinds, and what they have found."""

    def __init__(self, port: int, expected: Expected, end: float) -> None:
        self.port, self.expected, self.end = port, expected, end
        self.statuses: Counter[str] = Counter()
        self.problems: list[str] = []
        self.inputs = 0
        self.random = random.Random(0)
        self.kinds: dict[str, Callable[[Connection], Any]] = {
            "predict": self.predict,
            "mixed": self.predict_with_bad_inputs,
            "embed": self.embed,
            "openai": self.embeddings,
            "invalid": self.invalid,
            "dropped": self.dropped,
            "state": self.state,
        }

    async def client(self) -> None:
        connection = Connection(self.port)
        while time.monotonic() < self.end:
            name = self.random.choices(list(self.kinds), [8, 2, 2, 1, 1, 1, 1])[0]
            await self.kinds[name](connection)
            await asyncio.sleep(self.random.expovariate(10))
        connection.close()

    async def ask(self, connection: Connection, path: str, body: Any, expected_status: int = 200) -> Any:
        method = "GET" if body is None else "POST"
        status, data = await connection.send(method, path, body)
        self.statuses[f"{path} {status}"] += 1
        while status == BUSY:  # other programs may use the same cores
            await asyncio.sleep(1)
            status, data = await connection.send(method, path, body)
            self.statuses[f"{path} {status}"] += 1
        if status != expected_status:
            self.problems.append(f"{path}: status {status} instead of {expected_status}: {data[:200]!r}")
        return json.loads(data) if data[:1] in (b"{", b"[") else {}

    def some_texts(self) -> list[int]:
        count = self.random.choice([1, 1, 1, 2, 4, 8, 32])
        self.inputs += count
        return [self.random.randrange(len(self.expected.texts)) for _ in range(count)]

    async def predict(self, connection: Connection) -> None:
        own = self.some_texts()
        tasks = self.random.choice([*((task,) for task in self.expected.tasks), tuple(self.expected.tasks)])
        body = {"inputs": [self.expected.texts[i] for i in own], "tasks": list(tasks)}
        answer = await self.ask(connection, "/predict", body)
        self.check(own, answer.get("results", []), tasks)

    async def predict_with_bad_inputs(self, connection: Connection) -> None:
        own, task = self.some_texts(), self.expected.tasks[0]
        bad = [self.random.choice(["", 3, None, {"txt": "x"}, ["a", "b", "c"]]) for _ in range(2)]
        body = {"inputs": [bad[0], *(self.expected.texts[i] for i in own), bad[1]], "tasks": task}
        results = (await self.ask(connection, "/predict", body)).get("results", [{}, {}])
        if not all("error" in one for one in (results[0], results[-1])):
            self.problems.append(f"no error for {bad}: {results[0]}, {results[-1]}")
        self.check(own, results[1:-1], (task,))

    def check(self, own: Sequence[int], results: Sequence[dict[str, Any]], tasks: Sequence[str]) -> None:
        if len(results) != len(own):
            self.problems.append(f"{len(results)} answers to {len(own)} inputs")
        for index, one in zip(own, results, strict=False):
            if not self.expected.is_right(index, one, tasks):
                self.problems.append(f"a wrong answer for {tasks}: {one}")

    async def embed(self, connection: Connection) -> None:
        own = self.some_texts()
        answer = await self.ask(connection, "/embed", {"inputs": [self.expected.texts[i] for i in own]})
        for index, one in zip(own, answer.get("results", []), strict=True):
            if max(abs(a - b) for a, b in zip(one["embedding"], self.expected.vectors[index], strict=True)) > 1e-3:
                self.problems.append("a wrong vector")

    async def embeddings(self, connection: Connection) -> None:
        own = self.some_texts()
        body = {"input": [self.expected.texts[i] for i in own], "model": self.expected.tasks[0]}
        answer = await self.ask(connection, "/v1/embeddings", body)
        if len(answer.get("data", [])) != len(own):
            self.problems.append("/v1/embeddings: vectors are missing")

    async def invalid(self, connection: Connection) -> None:
        body, status = self.random.choice(
            [
                ({"inputs": "x", "tasks": "missing"}, 422),
                ({"text": "x"}, 422),
                ({"inputs": ["x"] * 300}, 413),
                ({"inputs": "x" * 200_000}, 413),
            ]
        )
        await self.ask(connection, "/predict", body, status)

    async def dropped(self, _: Connection) -> None:
        """Sends a request, or a part of it, and closes the connection."""
        data = json.dumps({"inputs": [self.expected.texts[i] for i in self.some_texts()]}).encode()
        writer = (await asyncio.open_connection("127.0.0.1", self.port))[1]
        head = "POST /predict HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        writer.write(
            f"{head}content-length: {len(data)}\r\n\r\n".encode()
            + data[: self.random.choice([len(data), len(data) // 2, 0])]
        )
        await writer.drain()
        writer.close()
        self.statuses["dropped by the client"] += 1

    async def state(self, connection: Connection) -> None:
        await self.ask(connection, self.random.choice(STATE), None)


def soak(port: int, pid: int, run: Path, make_text: Callable[[], str], seconds: float) -> int:
    """Returns 0 if every answer was right and the memory did not grow, else 1."""
    expected = Expected(run, [make_text() for _ in range(POOL)])
    start = time.monotonic()
    found = Soak(port, expected, start + seconds)
    memory = asyncio.run(run_clients(found, pid, start))
    requests, statuses = sum(found.statuses.values()), dict(sorted(found.statuses.items()))
    print(f"\n{requests:,} requests with {found.inputs:,} inputs: {statuses}")
    first = min(2 * RELOAD_SECONDS // 60 + 1, len(memory) - 1)
    reference, end = statistics.median(memory[first : first + MINUTES]), statistics.median(memory[-MINUTES:])
    print(f"memory: {reference:.0f} MB after two reloads, {end:.0f} MB at the end ({end / reference - 1:+.1%})")
    print(f"problems: {len(found.problems)}", *found.problems[:20], sep="\n")
    return int(bool(found.problems) or end > GROWTH * reference)


async def run_clients(found: Soak, pid: int, start: float) -> list[float]:
    """Runs the clients to the end; the memory in MB of every minute."""
    clients = asyncio.gather(*(found.client() for _ in range(CLIENTS)))
    memory, reloads = [memory_mb(pid)], 0
    while not clients.done():
        await asyncio.wait([clients], timeout=60)
        memory.append(memory_mb(pid))
        elapsed = time.monotonic() - start
        print(
            f"{elapsed / 60:.0f} min: {memory[-1]:.0f} MB, {found.inputs:,} inputs, {len(found.problems)} problems",
            flush=True,
        )
        if elapsed // RELOAD_SECONDS > reloads and not clients.done():
            reloads += 1
            os.kill(pid, signal.SIGHUP)
    await clients
    return memory
