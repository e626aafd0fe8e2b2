"""Runs with all kinds of tasks, and servers that listen to a free port."""

import json
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from polytask import Finished, Predictor, ServingLimits, train
from polytask.serving.server import bind, import_server
from polytask.serving.service import Service

LONG = {"windows": {"stride": 31, "most": 4}}
PAIR = ["first", "second"]
TASKS: dict[str, dict[str, Any]] = {
    "opinion": {"kind": "classes", "text": "first", "label": "mood"},
    "size": {"kind": "score", "text": "first", "label": "number"},
    "topics": {"kind": "multilabel", "text": "first", "label": "topics"},
    "entities": {"kind": "tokens", "text": "words", "label": "tags"},
    "decision": {"kind": "classes", "text": "first", "label": "mood", **LONG},
    "question": {"kind": "yes_no", "text": PAIR, "label": "same"},
    "similarity": {"kind": "score", "text": PAIR, "label": "stars", "range": [0, 5]},
    "articles": {"kind": "match", "text": PAIR, "label": None},
    "alike": {"kind": "score", "text": PAIR, "label": "stars", "range": [0, 5], "head": "cosine", **LONG},
    "evidence": {"kind": "yes_no", "text": ["first", "second", "third"], "label": "same"},
    "reply": {"kind": "choice", "text": "first", "options": "replies", "label": "best"},
}
"""A task of each kind, and with each number of texts."""


def write_rows(path: Path) -> str:
    """A file with the columns of all tasks."""
    rows = [
        {
            "first": f"is number {i} good" + " or bad" * (i % 3),
            "second": f"what about {i * 7 % 24}",
            "third": f"the answer is {i}",
            "mood": ("good", "bad", "mixed")[i % 3],
            "number": 10.0 * i,
            "topics": "|".join(name for name, step in (("even", 2), ("third", 3)) if i % step == 0),
            "words": ["number", str(i), "lives", "here"],
            "tags": ["O", "B-number", "O", "B-place"],
            "same": i % 2,
            "stars": i % 6,
            "replies": ["yes", "no", f"maybe {i}"][: 2 + i % 2],
            "best": i % 2,
        }
        for i in range(24)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.fixture(scope="session")
def make_mixed_run(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Finished]:
    """A function that trains all kinds of tasks a little, with an adapter; each adapter once."""
    runs: dict[str, Finished] = {}
    file = write_rows(tmp_path_factory.mktemp("rows") / "rows.jsonl")

    def make(adapter: str) -> Finished:
        if adapter not in runs:
            recipe = {
                "name": "mixed",
                "encoder": {"layers": 2, "hidden": 32, "heads": 4, "ffn": 64, "positions": 64},
                "max_length": 64,
                "adapter": yaml.safe_load(adapter),
                "tasks": {
                    name: {"train": file, "dev": file, **{k: v for k, v in task.items() if v is not None}}
                    for name, task in TASKS.items()
                },
                "optimizer": {"name": "adamw", "lr": 3e-3},
                "train": {"epochs": 1, "steps_per_epoch": 11, "batch_size": 8, "precision": "float32", "device": "cpu"},
            }
            runs[adapter] = train(recipe, tmp_path_factory.mktemp("mixed") / "run")
        return runs[adapter]

    return make


class Running:
    """A server that answers in a thread."""

    def __init__(self, service: Service, server: Any, address: str) -> None:
        self.service, self.server, self.address = service, server, address
        self.client = httpx2.Client(base_url=address, timeout=60)

    def post(self, path: str, body: Any, **more: Any) -> Any:
        return self.client.post(path, json=body, **more)

    def value(self, name: str, **labels: str) -> float:
        """The value of a metric: the sum over the labels that are not given."""
        text = self.client.get("/metrics").text
        samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
        return sum(one.value for one in samples if one.name == name and labels.items() <= one.labels.items())


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
def mixed_server(make_mixed_run: Callable[[str], Finished]) -> Iterator[Running]:
    """A server of tasks of all kinds, with adapters. Tests must not stop it or change its model."""
    with start(make_mixed_run("{name: houlsby, size: 4}").folder) as server:
        yield server


@pytest.fixture
def start_server() -> Callable[..., AbstractContextManager[Running]]:
    """start_server(run, limits=None, api_key=None): a context with a server of its own."""
    return start
