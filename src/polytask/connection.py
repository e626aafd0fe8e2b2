"""The connection of the processes that torchrun has started: a process group for tensors, and a store for short texts.

All processes leave the group together after the last step, before the first one finishes the run on its own: NCCL can
block in a process that leaves alone. The store outlives the group; in it the others find that the first has finished.
"""

import atexit
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from polytask.types import UserError

TIMEOUT = timedelta(minutes=30)
"""How long a process waits for another one that is alive. The end of a process is noticed at once."""
LOST = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "Socket", "socket", "NCCL", "store")
"""Words in errors of torch.distributed that mean that another process has ended."""
POLL_SECONDS = 0.1
"""Between two looks into the store: Python handles signals only between calls of it."""
READ_SECONDS = 10.0
"""How long the store's owner waits for those who read: one of them may have been killed."""


class ProcessLost(UserError):
    """Another process of the job has ended."""


@dataclass
class _Connection:
    """The connection of this process."""

    store: Store | None = None
    groups: int = 0
    """The number of groups that were made, one after another."""
    uses_nccl: bool = False


_connection = _Connection()


def started_processes(environment: Mapping[str, str] = os.environ) -> int:
    """Return the number of processes that torchrun, or whoever started this one, has started for one job."""
    count = environment.get("WORLD_SIZE", "1")
    return int(count) if count.isdecimal() and "RANK" in environment else 1


def connect() -> None:
    """Connect the processes, until `disconnect` or the end of this one. A group that the program has made is used.

    If threads of gloo still run when Python ends, they can abort the process, and a run that has ended well would have
    failed. They end with the process group, if nothing refers to it any more: functions of `torch.distributed.nn`
    would, in their defaults, if other parts of PyTorch imported it later.
    """
    import torch.distributed.nn.functional  # noqa: F401, PLC0415

    try:
        with _ended_by_signals():
            if _connection.store is None:
                _connection.store, _, _ = next(rendezvous("env://", timeout=TIMEOUT))
            if not dist.is_initialized():
                _make_group(_connection.store)
    except RuntimeError as error:
        address = ":".join(os.environ.get(name, "?") for name in ("MASTER_ADDR", "MASTER_PORT"))
        raise UserError(
            f"the {started_processes()} processes could not be connected at {address}: {first_line(error)}; check that "
            "all of them were started, and that the machines reach each other"
        ) from error


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Let SIGINT and SIGTERM end this process at once inside the context: there is nothing to save yet.

    PyTorch waits for the others in C++, where Python's handlers do not run: if one of the others had been killed, this
    process would wait on until its launcher kills it, 30 seconds after SIGTERM. Only the main thread can do this.
    """
    numbers = (signal.SIGINT, signal.SIGTERM) if threading.current_thread() is threading.main_thread() else ()
    before = {number: signal.signal(number, signal.SIG_DFL) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)  # None: not set by Python


def _make_group(store: Store) -> None:
    _connection.groups += 1
    _connection.uses_nccl = torch.cuda.is_available()
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if _connection.uses_nccl else "gloo",
        # A prefix of its own for each group: a second one must not find the addresses of the first.
        store=PrefixStore(f"polytask/{_connection.groups}", store),
        rank=int(os.environ["RANK"]),
        world_size=started_processes(),
        timeout=TIMEOUT,
    )
    if _connection.groups == 1:
        atexit.register(_end)


def disconnect() -> None:
    """Leave the group, in all processes at the same point. A group that the program has made is kept."""
    if _connection.groups and dist.is_initialized():
        dist.destroy_process_group()


def _end() -> None:
    """The end of a process that has not left the group: after an error, or where a program leaves a run's loop early.

    NCCL would wait for the other processes, which may wait for this one.
    """
    if not _connection.uses_nccl:
        disconnect()


# --- the store --------------------------------------------------------------------------------------------------------
def publish(key: str, text: str, wait: bool) -> None:
    """Let other processes read a text; `wait`: until those that wait for it have read it.

    The store may end with this process.
    """
    store = _connection.store
    assert store is not None
    with lost_processes():
        store.set(key, text)
        last = time.monotonic() + READ_SECONDS
        while wait and store.add(f"{key}/waiting", 0) > store.add(f"{key}/read", 0) and time.monotonic() < last:
            time.sleep(POLL_SECONDS)


def published(key: str) -> str:
    """Wait for the text that another process publishes, for as long as that takes."""
    store = _connection.store
    assert store is not None
    with lost_processes():
        store.add(f"{key}/waiting", 1)
        while not store.check([key]):
            time.sleep(POLL_SECONDS)
        text: str = store.get(key).decode()
        store.add(f"{key}/read", 1)
    return text


@contextmanager
def lost_processes() -> Iterator[None]:
    """Turn errors of torch.distributed that mean that another process has ended into a ProcessLost."""
    try:
        yield
    except RuntimeError as error:
        if not any(word in str(error) for word in LOST):
            raise
        cause, _, _ = first_line(error).partition(". ")  # gloo adds advice, which does not help here
        raise ProcessLost(
            "another process of this run has ended (its own error, if it had one, is shown above or in its log); the "
            f"run can be continued from its last checkpoint with --resume. PyTorch's error: {cause}"
        ) from error


def first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
