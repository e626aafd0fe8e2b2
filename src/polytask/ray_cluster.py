"""Connects to a Ray cluster, or starts Ray on this machine. Ray is imported only here and by those who call it.

Ray does the work on several machines: polytask has no cluster of its own.
"""

import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from polytask.machine import usable_cores
from polytask.types import UserError

STORE_BYTES = 128 * 2**20
"""The object store of a Ray that is started here: only descriptions of work are sent through it, no data."""
ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",  # reports are sent over the network
    "RAY_BACKEND_LOG_LEVEL": "fatal",  # the messages that Ray's C++ code prints to the terminal
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # a worker without a GPU of its own sees none; else Ray prints a warning
}
"""Set for Ray, where the user has not set it."""
CONNECT_SECONDS = 10.0
"""Ray itself tries for ten minutes to reach an address at which nothing answers."""


def import_ray(what: str) -> Any:
    """The `ray` package; `what` needs it, as the error says if it is not installed."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        import ray  # noqa: PLC0415  (an optional extra)
    except ImportError as error:
        raise UserError(f"{what} needs the Ray library: pip install 'polytask[ray]'") from error
    return ray


@contextmanager
def connect(what: str, address: str | None = None, cpus: int | None = None) -> Iterator[Any]:
    """Yields the `ray` package with a connection to a cluster, which is closed at the end.

    Args:
        what: What needs Ray, for error messages, as in "polytask compare --engine ray".
        address: The cluster's address (`auto`, `HOST:PORT` or `ray://HOST:PORT`). Default: the environment variable
            RAY_ADDRESS or, without it, a Ray that is started on this machine and stopped at the end.
        cpus: The CPUs of a Ray that is started here. Default: those that this process may use.

    If the process is already connected, that connection is used and stays open.
    """
    ray = import_ray(what)
    if ray.is_initialized():
        yield ray
        return
    address = address or os.environ.get("RAY_ADDRESS") or "local"
    own: dict[str, Any] = {}
    if address == "local":
        own = {"num_cpus": cpus or usable_cores(), "include_dashboard": False, "object_store_memory": STORE_BYTES}
    try:
        _reach(address)
        with _kept_signals(), _no_output(), _in_root_folder():
            ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False, **own)
    except (OSError, ValueError, RuntimeError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise UserError(
            f"{what}: cannot connect to Ray at {address!r} ({reason}); start it with `ray start --head` and pass the "
            "address that this prints, or pass no address to use this machine only; if the cluster asks for a token, "
            "set RAY_AUTH_MODE=token here too"
        ) from error
    except ray.exceptions.RayError as error:
        raise UserError(refused(what, address, error)) from error
    try:
        yield ray
    finally:
        ray.shutdown()


def refused(what: str, address: str, error: Exception) -> str:
    """What to do after an error of Ray itself: most often the token is missing, or another one than the cluster's."""
    reason = str(getattr(error, "message", error)).strip().partition("\n")[0]  # without Ray's own advice
    if type(error).__name__ == "AuthenticationError":
        return (
            f"{what}: Ray at {address!r} asks for a token ({reason}); `ray get-auth-token --generate` writes one to "
            "~/.ray/auth_token: all machines need the same one there, or in the file that RAY_AUTH_TOKEN_PATH names"
        )
    return f"{what}: cannot connect to Ray at {address!r} ({reason}); `ray status` shows whether it is running"


def _reach(address: str) -> None:
    """Raises an OSError if nothing answers at HOST:PORT."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host, int(port)), CONNECT_SECONDS).close()


@contextmanager
def _no_output() -> Iterator[None]:
    """Discards what is written to standard error meanwhile: Ray's C++ code prints the level of its log there."""
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


@contextmanager
def _in_root_folder() -> Iterator[None]:
    """Changes the working directory meanwhile: Ray puts it first into the module search path of every worker.

    A file polytask.py or yaml.py in the user's data folder would be executed.
    """
    before = os.getcwd()
    os.chdir(os.path.abspath(os.sep))
    try:
        yield
    finally:
        os.chdir(before)


@contextmanager
def _kept_signals() -> Iterator[None]:
    """Restores the handler of SIGTERM, which `ray.init` replaces. Only the main thread has handlers."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
