"""Measures `polytask serve` under load, beside a plain FastAPI endpoint and LitServe with the same model and cores.

    python benchmarks/serving.py compare [--rounds 3] [--seconds 8]
    python benchmarks/serving.py model [--rounds 3] [--seconds 2]
    python benchmarks/serving.py overload [--seconds 60]
    python benchmarks/serving.py soak [--minutes 60]

The model is MiniLM with the three tasks of `recipes/partly-labelled.yaml`, trained for one epoch (the speed does not
depend on the weights), or the run given with `--run`. All texts are different. The clients run in this process, on the
same cores as the servers.

- compare: closed loops of 1, 16 and 64 clients, one text in each request. The servers take turns, in random order, and
  those that wait are stopped (SIGSTOP). Prints requests per second and latencies, and the ratio to polytask's of the
  same round: the median over the rounds, the lowest and the highest. Then the same requests with three tasks and one.
- model: texts per second of `predict` without a server, for batches of 1, 16 and 64 texts, and the ratio to those of 1:
  what batches alone can gain.
- overload: four times as many requests as the server can answer, eight texts in each: the statuses, the memory
  (also 2 s after the last request), and the seconds until single requests are answered as quickly as before.
- soak: requests of all kinds, correct and faulty, dropped connections, and a reload every five minutes. Each answer is
  compared with that of `polytask.load(RUN).predict`. Prints the memory every minute.
"""

import argparse
import asyncio
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from serving_load import Connection, Load, closed_loop, fixed_rate, memory_mb
from serving_soak import soak

import polytask
from polytask.machine import environment
from polytask.tasks.reading import open_source
from polytask.tasks.sources.source import BrokenRow

ROOT = Path(__file__).parent.parent
PEERS = ("plain", "plain-async", *(("litserve",) if find_spec("litserve") else ()))
TASK = "team"
CLIENTS = (1, 16, 64)


def make_run(folder: Path) -> Path:
    """Trains the model that is served."""
    settings = ["train.epochs=1", f"encoder={polytask.find_encoder('minilm')}"]
    polytask.train(polytask.read_recipe(ROOT / "recipes" / "partly-labelled.yaml", settings), folder / "run")
    return folder / "run"


class Texts:
    """Different short texts: a random message of the sample data and a number."""

    def __init__(self, seed: int) -> None:
        rows = open_source("sample:inbox-train").rows(["message"])
        self.messages = [str(row[1][0]) for row in rows if not isinstance(row, BrokenRow)]
        self.random = random.Random(seed)

    def __call__(self) -> str:
        return f"{self.random.choice(self.messages)} Ticket {self.random.randrange(10**6)}."


class Server:
    """A server in a process of its own, with everything it starts."""

    def __init__(self, name: str, run: Path, options: Sequence[str] = ()) -> None:
        self.name, self.port = name, free_port()
        if name == "polytask":
            command = ["-m", "polytask", "serve", str(run), "--port", str(self.port), *options]
        else:
            program = "serving_litserve.py" if name == "litserve" else "serving_plain.py"
            command = [str(Path(__file__).parent / program), name, str(run), TASK, str(self.port)]
        self.process = subprocess.Popen([sys.executable, *command], start_new_session=True, stdout=subprocess.DEVNULL)

    def wait_until_ready(self) -> None:
        while True:
            if self.process.poll() is not None:
                raise SystemExit(f"{self.name} has stopped with exit code {self.process.returncode}")
            status, _ = asyncio.run(self.ask("How do I change my password?"))
            if status == 200:
                return
            time.sleep(0.2)

    async def ask(self, text: str) -> tuple[int, bytes]:
        connection = Connection(self.port)
        found = await connection.post("/predict", self.body(text))
        connection.close()
        return found

    def body(self, text: str) -> dict[str, Any]:
        return {"inputs": text, "tasks": TASK} if self.name == "polytask" else {"text": text}

    def signal(self, number: signal.Signals) -> None:
        os.killpg(self.process.pid, number)

    def close(self) -> None:
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGKILL)
        self.process.wait()


@contextmanager
def started(name: str, run: Path, options: Sequence[str] = ()) -> Iterator[Server]:
    server = Server(name, run, options)
    try:
        server.wait_until_ready()
        yield server
    finally:
        server.close()


@contextmanager
def running(server: Server) -> Iterator[None]:
    """Lets a stopped server run."""
    server.signal(signal.SIGCONT)
    yield
    server.signal(signal.SIGSTOP)


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


# --- compare ----------------------------------------------------------------------------------------------------------
def compare(run: Path, rounds: int, seconds: float) -> None:
    loads: dict[tuple[str, int], list[Load]] = {}
    order = random.Random(0)
    with ExitStack() as stack:
        servers = [stack.enter_context(started(name, run)) for name in ("polytask", *PEERS)]
        for server in servers:
            server.signal(signal.SIGSTOP)
        for number in range(rounds):
            for clients in CLIENTS:
                for server in order.sample(servers, len(servers)):
                    with running(server):
                        texts = Texts(order.randrange(2**32))
                        body = lambda server=server, texts=texts: server.body(texts())  # noqa: E731
                        load = asyncio.run(closed_loop(server.port, "/predict", body, clients, seconds, 1.0))
                    loads.setdefault((server.name, clients), []).append(load)
                    print(f"round {number}: {server.name}, {clients} clients: {describe(load)}", flush=True)
        with running(servers[0]):
            tasks = compare_tasks(servers[0], rounds, seconds)
    print_comparison(loads)
    print(f"\nOne task / three tasks, requests per second, 16 clients: {ratio(tasks)}")


def compare_tasks(server: Server, rounds: int, seconds: float) -> list[float]:
    """How many times faster requests for one task are than those for three."""
    ratios: list[float] = []
    for number in range(rounds):
        rates = []
        for tasks in ([TASK], None):
            texts = Texts(number)
            body = lambda tasks=tasks, texts=texts: {"inputs": texts(), "tasks": tasks}  # noqa: E731
            rates.append(asyncio.run(closed_loop(server.port, "/predict", body, 16, seconds, 1.0)).rate)
        ratios.append(rates[0] / rates[1])
        print(f"round {number}: one task {rates[0]:.1f}, three tasks {rates[1]:.1f} requests/s", flush=True)
    return ratios


def print_comparison(loads: dict[tuple[str, int], list[Load]]) -> None:
    print(
        "\n| server | clients | requests/s | p50 ms | p99 ms | polytask's rate / its rate | polytask's p99 / its p99 |"
    )
    print("| --- | ---: | ---: | ---: | ---: | --- | --- |")
    for (name, clients), own in sorted(loads.items(), key=lambda one: one[0][1]):
        ours = loads["polytask", clients]
        rates = ratio([a.rate / b.rate for a, b in zip(ours, own, strict=True)])
        tails = ratio([a.quantile(0.99) / b.quantile(0.99) for a, b in zip(ours, own, strict=True)])
        middle = [statistics.median(one) for one in zip(*map(figures, own), strict=True)]
        print(f"| {name} | {clients} | {middle[0]:.1f} | {middle[1]:.1f} | {middle[2]:.1f} | {rates} | {tails} |")


def figures(load: Load) -> tuple[float, float, float]:
    return load.rate, load.quantile(0.5), load.quantile(0.99)


def ratio(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def describe(load: Load) -> str:
    rate, middle, tail = figures(load)
    statuses = f"statuses {dict(load.statuses)}, clients {load.client_share:.1%} of a core"
    return f"{rate:.1f} requests/s, p50 {middle:.1f} ms, p99 {tail:.1f} ms, {statuses}"


# --- model ------------------------------------------------------------------------------------------------------------
def measure_model(run: Path, rounds: int, seconds: float) -> None:
    model, texts = polytask.load(run), Texts(0)
    rates: dict[int, list[float]] = {size: [] for size in CLIENTS}
    for _ in range(rounds):
        for size, own in rates.items():
            predict_for(model, texts, size, 0.5)  # the sizes of its matmuls are compiled
            own.append(predict_for(model, texts, size, seconds))
    for size, own in rates.items():
        ratios = [rate / alone for rate, alone in zip(own, rates[1], strict=True)]
        print(f"predict with {size} texts: {statistics.median(own):.1f} texts/s, {ratio(ratios)} times one text")


def predict_for(model: polytask.Predictor, texts: Texts, size: int, seconds: float) -> float:
    """The texts per second of batches with so many texts."""
    start, count = time.perf_counter(), 0
    while time.perf_counter() < start + seconds:
        model.predict(TASK, [texts() for _ in range(size)])
        count += size
    return count / (time.perf_counter() - start)


# --- overload ---------------------------------------------------------------------------------------------------------
INPUTS = 8
NORMAL_SECONDS = 2
"""How long after the last request everything should be as before; also the memory, which is measured then."""


def overload(run: Path, seconds: float) -> None:
    texts = Texts(0)
    one: Callable[[], Any] = lambda: {"inputs": texts(), "tasks": TASK}  # noqa: E731
    several: Callable[[], Any] = lambda: {"inputs": [texts() for _ in range(INPUTS)], "tasks": TASK}  # noqa: E731
    with started("polytask", run) as server:
        capacity = asyncio.run(closed_loop(server.port, "/predict", several, 32, 10, 2.0))
        before = asyncio.run(closed_loop(server.port, "/predict", one, 1, 5, 1.0))
        memory = [memory_mb(server.process.pid)]
        rate = 4 * capacity.rate
        print(f"capacity: {describe(capacity)}\na single client: {describe(before)}", flush=True)
        load, recovery = asyncio.run(overload_and_recover(server, several, one, rate, seconds, before, memory))
    sent, growth = sum(load.statuses.values()) / load.seconds, memory[-1] / memory[0] - 1
    print(f"sent {sent:.1f} requests/s of {INPUTS} texts for {load.seconds:.0f} s: statuses {dict(load.statuses)}")
    print(f"answered: p50 {load.quantile(0.5):.0f} ms, p99 {load.quantile(0.99):.0f} ms")
    print(f"memory: {memory[0]:.0f} MB before, at most {max(memory):.0f}, {memory[-1]:.0f} after ({growth:+.1%})")
    print(f"normal again after {recovery:.2f} s")


async def overload_and_recover(
    server: Server,
    several: Callable[[], Any],
    one: Callable[[], Any],
    rate: float,
    seconds: float,
    before: Load,
    memory: list[float],
) -> tuple[Load, float]:
    """The load, and the seconds after the last request was sent until ten answers in a row were as quick as before."""
    sending = asyncio.create_task(fixed_rate(server.port, "/predict", several, rate, seconds))
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        await asyncio.sleep(min(1.0, max(end - time.perf_counter(), 0)))
        memory.append(memory_mb(server.process.pid))
    stopped, quick, connection = time.perf_counter(), 0, Connection(server.port)
    normal = 2 * before.quantile(0.99) / 1000
    first = stopped
    while quick < 10:
        sent = time.perf_counter()
        status, _ = await connection.post("/predict", one())
        fast = status == 200 and time.perf_counter() - sent <= normal
        first = sent if fast and not quick else first
        quick = quick + 1 if fast else 0
    while time.perf_counter() < stopped + NORMAL_SECONDS:
        await connection.post("/predict", one())
    memory.append(memory_mb(server.process.pid))
    return await sending, first - stopped


def print_machine() -> None:
    machine = environment(torch.device("cpu"))
    versions = ", ".join(f"{name} {version(name)}" for name in ("fastapi", "uvicorn", "litserve") if find_spec(name))
    print(
        f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC; {machine['cpu']}, {machine['threads']} threads, torch "
        f"{machine['torch']}, {versions}, commit {machine['commit']}; load {os.getloadavg()[0]:.1f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("compare", "model", "overload", "soak"))
    parser.add_argument("--run", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--minutes", type=float, default=60)
    chosen = parser.parse_args()
    print_machine()
    with tempfile.TemporaryDirectory() as folder:
        run = chosen.run or make_run(Path(folder))
        if chosen.what == "compare":
            compare(run, chosen.rounds, chosen.seconds or 8)
        elif chosen.what == "model":
            measure_model(run, chosen.rounds, chosen.seconds or 2)
        elif chosen.what == "overload":
            overload(run, chosen.seconds or 60)
        else:
            with started("polytask", run, ["--reload"]) as server:
                sys.exit(soak(server.port, server.process.pid, run, Texts(1), chosen.minutes * 60))


if __name__ == "__main__":
    main()
