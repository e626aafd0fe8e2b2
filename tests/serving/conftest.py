"""Runs with all kinds of tasks, and servers that listen to a free port."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml

from polytask import Finished, Predictor, ServingLimits, train
from polytask.serving.server import bind, import_server
from polytask.serving.service import Service

RECIPES = Path(__file__).parents[2] / "recipes"


@pytest.fixture(scope="session")
def make_mixed_run(tmp_path_factory: pytest.TempPathFactory, tiny_settings: list[str]) -> Callable[[str], Finished]:
    """A function that trains the tasks of three recipes, with an adapter; each adapter once."""
    runs: dict[str, Finished] = {}

    def make(adapter: str) -> Finished:
        if adapter not in runs:
            recipe: dict[str, Any] = yaml.safe_load((RECIPES / "quickstart.yaml").read_text())
            for name in ("entities", "match"):
                recipe["tasks"] |= yaml.safe_load((RECIPES / f"{name}.yaml").read_text())["tasks"]
            settings = [*tiny_settings, f"adapter={adapter}", "train.epochs=1", "train.steps_per_epoch=5"]
            runs[adapter] = train(recipe, tmp_path_factory.mktemp("mixed") / "run", settings)
        return runs[adapter]

    return make


class Running:
    """A server that answers in a thread."""

    def __init__(self, service: Service, server: Any, address: str) -> None:
        self.service, self.server, self.address = service, server, address
        self.client = httpx2.Client(base_url=address, timeout=60)

    def post(self, path: str, body: Any, **more: Any) -> Any:
        return self.client.post(path, json=body, **more)


@contextmanager
def start(run: Path, limits: ServingLimits | None = None, api_key: str | None = None) -> Iterator[Running]:
    """The real server on a free port. It is stopped as SIGTERM stops it."""
    service, server = import_server()(Predictor.load(run, device="cpu"), limits, run, api_key)
    service.warm_up()
    listener = bind("127.0.0.1", 0)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    running = Running(service, server, f"http://127.0.0.1:{listener.getsockname()[1]}")
    try:
        yield running
    finally:
        running.client.close()
        server.handle_exit(signal.SIGTERM, None)
        thread.join()
        service.close()
        listener.close()


@pytest.fixture(scope="session")
def tiny_server(tiny_run: Finished) -> Iterator[Running]:
    """A server of the quick start. Tests must not stop it or change its model."""
    with start(tiny_run.folder) as server:
        yield server


@pytest.fixture(scope="session")
def start_server() -> Callable[..., AbstractContextManager[Running]]:
    """start_server(run, limits=None, api_key=None): a context with a server of its own."""
    return start
