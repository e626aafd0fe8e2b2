"""Sends requests to a server and measures its answers: closed loops of clients, and a fixed rate. Knows no model."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

LOST = 0
"""The status of a request whose connection was closed without an answer."""
MakeBody = Callable[[], Any]


@dataclass
class Load:
    """What a server answered while it was under load."""

    seconds: float
    statuses: Counter[int] = field(default_factory=Counter)
    latencies: list[float] = field(default_factory=list)
    """Seconds of each request with status 200, without those of the warm-up."""
    client_share: float = 0.0
    """The share of one core that the clients used."""

    @property
    def rate(self) -> float:
        """Answered requests per second."""
        return len(self.latencies) / self.seconds

    def quantile(self, share: float) -> float:
        """The latency that this share of the requests stays within, in milliseconds."""
        ordered = sorted(self.latencies) or [float("nan")]
        return 1000 * ordered[min(int(share * len(ordered)), len(ordered) - 1)]


class Connection:
    """One HTTP/1.1 connection that is kept open. Costs much less time than a general client."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.reader: asyncio.StreamReader | None = None
        self.writer: asyncio.StreamWriter | None = None

    async def send(self, method: str, path: str, body: Any = None) -> tuple[int, bytes]:
        """The status and the body of the answer; status LOST if there is none."""
        try:
            return await self._send(method, path, b"" if body is None else json.dumps(body).encode())
        except (ConnectionError, asyncio.IncompleteReadError):
            self.close()
            return LOST, b""

    async def post(self, path: str, body: Any) -> tuple[int, bytes]:
        return await self.send("POST", path, body)

    async def _send(self, method: str, path: str, data: bytes) -> tuple[int, bytes]:
        closed = self.reader is not None and self.reader.at_eof()  # by the server, after a while without requests
        if self.writer is None or self.writer.is_closing() or closed:
            self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)
        assert self.reader is not None
        head = f"{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        self.writer.write(f"{head}content-length: {len(data)}\r\n\r\n".encode() + data)
        lines = (await self.reader.readuntil(b"\r\n\r\n")).lower().split(b"\r\n")
        headers = dict(line.split(b": ", 1) for line in lines[1:] if b": " in line)
        answer = await self.reader.readexactly(int(headers[b"content-length"]))
        if headers.get(b"connection") == b"close":
            self.close()
        return int(lines[0].split()[1]), answer

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()
        self.reader = self.writer = None


async def closed_loop(port: int, path: str, make_body: MakeBody, clients: int, seconds: float, warm_up: float) -> Load:
    """Lets each client send its next request as soon as it has the answer to the last one."""
    load, start = Load(seconds), time.perf_counter() + warm_up

    async def client() -> None:
        connection = Connection(port)
        while (sent := time.perf_counter()) < start + seconds:
            status, _ = await connection.post(path, make_body())
            load.statuses[status] += 1
            if status == 200 and sent >= start:
                load.latencies.append(time.perf_counter() - sent)
        connection.close()

    began, used = time.perf_counter(), time.process_time()
    await asyncio.gather(*(client() for _ in range(clients)))
    load.client_share = (time.process_time() - used) / (time.perf_counter() - began)
    return load


class Pool:
    """Connections that are free, opened when they are needed."""

    def __init__(self, port: int) -> None:
        self.port, self.free = port, list[Connection]()

    @asynccontextmanager
    async def connection(self) -> Any:
        one = self.free.pop() if self.free else Connection(self.port)
        yield one
        self.free.append(one)


async def fixed_rate(port: int, path: str, make_body: MakeBody, rate: float, seconds: float) -> Load:
    """Sends `rate` requests per second, whether the earlier ones are answered or not."""
    load, pool, start = Load(seconds), Pool(port), time.perf_counter()
    requests = set[asyncio.Task[None]]()

    async def request() -> None:
        sent = time.perf_counter()
        async with pool.connection() as connection:
            status, _ = await connection.post(path, make_body())
        load.statuses[status] += 1
        if status == 200:
            load.latencies.append(time.perf_counter() - sent)

    for due in due_times(rate, seconds):
        await asyncio.sleep(max(start + due - time.perf_counter(), 0))
        task = asyncio.create_task(request())
        requests.add(task)
        task.add_done_callback(requests.discard)
    load.seconds = time.perf_counter() - start
    if requests:
        await asyncio.wait(requests)
    return load


def due_times(rate: float, seconds: float) -> Iterator[float]:
    return (i / rate for i in range(int(rate * seconds)))


def memory_mb(pid: int) -> float:
    """The resident memory of a process and of those it has started, in MB."""
    total = 0.0
    for one in [pid, *children(pid)]:
        with suppress(FileNotFoundError, ProcessLookupError), open(f"/proc/{one}/status", encoding="utf-8") as lines:
            total += sum(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS:"))
    return total


def children(pid: int) -> list[int]:
    """The processes that a process has started, and theirs."""
    found: list[int] = []
    with suppress(FileNotFoundError), open(f"/proc/{pid}/task/{pid}/children", encoding="utf-8") as line:
        found = [int(one) for one in line.read().split()]
    return found + [inner for one in found for inner in children(one)]
