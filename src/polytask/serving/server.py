"""Runs a server: binds its address, handles signals, and replaces the model on SIGHUP."""

import gc
import ipaddress
import logging
import signal
import socket
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from polytask.machine import limit_kernel_cache, release_freed_memory, use_one_arena
from polytask.serving.limits import ServingLimits
from polytask.serving.predictor import Predictor
from polytask.types import UserError

if TYPE_CHECKING:
    from polytask.serving.service import Service

log = logging.getLogger(__name__)
RELOADING = threading.Lock()


def serve(
    run: str | Path,
    host: str = "127.0.0.1",
    port: int = 8000,
    limits: ServingLimits | None = None,
    *,
    api_key: str | None = None,
    allow_anyone: bool = False,
    reload: bool = False,
    examples: bool | None = None,
    started: Callable[[str], None] | None = None,
    **load_options: Any,
) -> None:
    """Serves a run over HTTP until SIGTERM or Ctrl-C; requests that were accepted by then are answered first.

    An address other than the machine's own needs an `api_key`, or `allow_anyone`. With `reload`, SIGHUP loads the
    run's folder again. With `examples`, the page shows a few rows of each task's dev split; by default only if no other
    machine can connect. `started` is called with the server's address when it is ready. `load_options` are those of
    `load`.
    """
    check_access(host, api_key, allow_anyone)
    make_server = import_server()
    limit_kernel_cache()
    use_one_arena()
    listener = bind(host, port)
    if reload:  # the signal's default is to end the process, also while the model is loaded
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with listener:
        # OpenMP's threads belong to the thread that started them and wait in a slow way if there are more of them than
        # cores. Those of this loader end with it, so the thread that computes batches has the only ones.
        with ThreadPoolExecutor(1) as loader:
            service, server = loader.submit(
                lambda: make_server(Predictor.load(run, **load_options), limits, Path(run), api_key)
            ).result()
        service.examples_of = Path(run) if (is_loopback(host) if examples is None else examples) else None
        service.examples_only_here = examples is None
        try:
            service.warm_up()
            if reload:
                signal.signal(signal.SIGHUP, lambda number, frame: start_reload(service, Path(run), load_options))
            address = listener.getsockname()
            shown = f"[{address[0]}]" if ":" in address[0] else address[0]
            if started is not None:
                started(f"http://{shown}:{address[1]}")
            server.run(sockets=[listener])
        finally:
            service.close()


def import_server() -> Callable[..., tuple["Service", Any]]:
    """Imports what the extra `serve` installs."""
    try:
        import uvicorn  # noqa: PLC0415  (an extra)

        from polytask.serving.app import make_app  # noqa: PLC0415
        from polytask.serving.service import Service  # noqa: PLC0415
    except ImportError as error:
        raise UserError(
            f"polytask serve needs FastAPI, uvicorn and prometheus-client ({error.name} is missing): "
            "pip install 'polytask[serve]'"
        ) from error

    class Server(uvicorn.Server):
        """Answers accepted requests after a signal to stop, and refuses new ones, before it closes its socket."""

        def __init__(self, config: uvicorn.Config, service: Service) -> None:
            super().__init__(config)
            self.service = service

        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            if self.service.stopping and sig == signal.SIGINT:  # a second Ctrl-C
                self.should_exit = self.force_exit = True
            self.service.stopping = True

        async def on_tick(self, counter: int) -> bool:
            if self.service.stopping and self.service.open_requests == 0:
                self.should_exit = True
            return await super().on_tick(counter)

    def make_server(
        predictor: Predictor, limits: ServingLimits | None, run: Path, api_key: str | None
    ) -> tuple[Service, Server]:
        service = Service(predictor, limits, run_name(run))
        # No access log, and no lifespan: `serve` starts and stops the service.
        settings = {"log_level": "warning", "access_log": False, "lifespan": "off", "server_header": False}
        return service, Server(uvicorn.Config(make_app(service, api_key), **settings), service)  # type: ignore[arg-type]

    return make_server


def run_name(run: Path) -> str:
    """The name of a run's folder; a link to a run has the name of the run."""
    folder = run.resolve()
    return folder.parent.name if folder.name == "model" else folder.name


def start_reload(service: "Service", run: Path, load_options: dict[str, Any]) -> threading.Thread:
    """Loads the run again in a thread, while the old model answers requests. Signals are handled one after another."""

    def load() -> None:
        with RELOADING:
            old = weakref.ref(service.model)
            try:
                service.replace(Predictor.load(run, **load_options), run_name(run))
            except Exception as error:  # whatever it is, the old model must be served
                log.error("the run was not reloaded, and the old one is still served: %s", error)
            else:
                free(old, service.limits.deadline_ms / 1000)

    thread = threading.Thread(target=load, name="polytask-reload", daemon=True)
    thread.start()
    return thread


def free(old: "weakref.ref[Any]", seconds: float) -> None:
    """Returns the memory of a replaced model to the kernel when no request uses it, at the latest after `seconds`."""
    end = time.monotonic() + seconds
    gc.collect()
    while old() is not None and time.monotonic() < end:
        time.sleep(1)
        gc.collect()
    release_freed_memory()


def check_access(host: str, api_key: str | None, allow_anyone: bool) -> None:
    """Raises a UserError if anyone in the network could use the server without a key."""
    if api_key is not None and (len(api_key) < 8 or not api_key.isascii() or api_key.split() != [api_key]):
        raise UserError("serve: the API key must have at least 8 characters, all ASCII and none of them a space")
    if api_key is None and not allow_anyone and not is_loopback(host):
        raise UserError(
            f"serve: {host} can be reached from other machines; pass --api-key-file FILE, set POLYTASK_API_KEY, or "
            "pass --allow-anyone if everyone who can reach it may use it"
        )


def is_loopback(host: str) -> bool:
    """Whether only this machine can connect to the address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def bind(host: str, port: int) -> socket.socket:
    """A socket that listens to the address."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=2048)
    except (OSError, OverflowError) as error:
        raise UserError(f"serve: cannot listen to {host} port {port}: {error}") from error
