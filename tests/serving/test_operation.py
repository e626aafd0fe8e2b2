"""The real server on a free port: readiness, limits, the API key, crashes, stopping and reloading."""

import hmac
import logging
import socket
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
from starlette.testclient import TestClient

from polytask import Finished, Predictor, ServingLimits, load
from polytask.serving.app import make_app
from polytask.serving.batching import Batcher
from polytask.serving.mixed import MixedPredictor
from polytask.serving.pace import SMALL_BATCH, Pace
from polytask.serving.probes import PACE_TEXTS, pace_items, probe_items
from polytask.serving.server import start_reload
from polytask.serving.service import Service

Running = Any  # of conftest.py
Start = Callable[..., AbstractContextManager[Any]]

SECRET = "a text that no log may have"
ADAPTER = "{name: houlsby, size: 4}"


def test_a_server_is_ready_when_it_is_warm(tiny_run: Finished) -> None:
    service = Service(Predictor.load(tiny_run.folder, device="cpu"))
    with TestClient(make_app(service)) as client:
        assert client.get("/live").status_code == 200
        cold = client.get("/ready")
        assert (cold.status_code, cold.json()["error_type"]) == (503, "not_ready")
        assert client.get("/health").json()["warm"] is False
        service.warm_up()
        assert client.get("/ready").json() == {"ready": True}
    service.close()


def test_bodies_are_counted_while_they_arrive(start_server: Start, tiny_run: Finished) -> None:
    limits = ServingLimits(max_body_bytes=10_000, max_characters=1000, max_inputs=3)
    with start_server(tiny_run.folder, limits) as server:
        sent = 0

        def endless() -> Any:
            nonlocal sent
            yield b'{"inputs": "'
            while sent < 10_000_000:
                sent += 1000
                yield b"x" * 1000

        try:
            response = server.client.post("/predict", content=endless(), headers={"content-type": "application/json"})
            assert (response.status_code, response.json()["error_type"]) == (413, "body_too_large")
        except httpx2.TransportError:
            pass  # the server has closed the connection before all was sent
        assert sent < 10_000_000
        assert server.value("polytask_failures_total", error_type="body_too_large") == 1
        announced = server.post("/predict", {"inputs": "x" * 20_000})
        assert announced.status_code == 413
        many = server.post("/predict", {"inputs": ["a"] * 4})
        assert (many.status_code, many.json()["error_type"]) == (413, "too_many_inputs")
        characters = server.post("/predict", {"inputs": "x" * 1001})
        assert (characters.status_code, characters.json()["error_type"]) == (413, "too_many_characters")
        assert server.post("/predict", {"inputs": ["a"] * 3}).status_code == 200


def test_the_api_key(start_server: Start, tiny_run: Finished, monkeypatch: pytest.MonkeyPatch) -> None:
    with start_server(tiny_run.folder, api_key="correct-horse") as server:
        for key in (None, "wrong-horse", "correct-horse2", "correct-hors", "é"):
            headers = {} if key is None else {"authorization": f"Bearer {key}".encode()}
            for path in ("/predict", "/metrics", "/openapi.json", "/nowhere"):
                response = server.client.request("POST" if path == "/predict" else "GET", path, headers=headers)
                assert (response.status_code, response.json()["error_type"]) == (401, "unauthorized")
        assert server.client.get("/live").status_code == server.client.get("/ready").status_code == 200
        compared = []
        compare = hmac.compare_digest
        monkeypatch.setattr(hmac, "compare_digest", lambda *both: compared.append(both) or compare(*both))
        right = {"authorization": "Bearer correct-horse"}
        assert server.post("/predict", {"inputs": "fine"}, headers=right).status_code == 200
        assert compared == [(b"correct-horse", b"correct-horse")]  # in constant time
        with openai.OpenAI(base_url=f"{server.address}/v1", api_key="correct-horse", max_retries=0) as client:
            assert client.embeddings.create(input="fine", model="opinion").data


class Held:
    """Replaces a model's `compute` by one that waits until it is released, and then maybe fails."""

    def __init__(self, model: MixedPredictor, monkeypatch: pytest.MonkeyPatch) -> None:
        self.entered, self.released = threading.Semaphore(0), threading.Event()
        self.error: Exception | None = None
        self.computed: list[int] = []
        """The number of items of each batch."""
        compute = model.compute

        def held(items: Any) -> Any:
            self.computed.append(len(items))
            self.entered.release()
            self.released.wait()
            if self.error is not None:
                raise self.error
            return compute(items)

        monkeypatch.setattr(model, "compute", held)

    def wait(self) -> None:
        """Waits for the start of a batch."""
        assert self.entered.acquire(timeout=60)


def test_a_crash_answers_500_and_the_server_goes_on(
    start_server: Start, tiny_run: Finished, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with start_server(tiny_run.folder) as server, caplog.at_level(logging.DEBUG):
        held = Held(server.service.model, monkeypatch)
        held.released.set()
        held.error = RuntimeError(SECRET)
        response = server.post("/predict", {"inputs": [SECRET, "fine"]})
        assert (response.status_code, response.json()["error_type"]) == (500, "batch_failed")
        assert SECRET not in response.text
        held.released.clear()  # what /ready computes to find out whether the model works again
        not_ready = server.client.get("/ready")
        assert (not_ready.status_code, not_ready.json()["error_type"]) == (503, "not_ready")
        assert server.client.get("/health").status_code == 503
        held.error = None
        held.released.set()
        assert server.post("/predict", {"inputs": SECRET}).status_code == 200
        assert server.client.get("/ready").status_code == 200
        assert server.post("/predict", {"inputs": SECRET, "tasks": "x"}).status_code == 422
    assert "failed with RuntimeError" in caplog.text
    assert SECRET not in caplog.text


def test_an_error_outside_a_batch_answers_500(
    start_server: Start, tiny_run: Finished, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with start_server(tiny_run.folder) as server, caplog.at_level(logging.DEBUG):

        def fail(*arguments: Any) -> Any:
            raise RuntimeError(SECRET)

        monkeypatch.setattr(server.service.model, "tokenize", fail)
        response = server.post("/predict", {"inputs": "fine"})
        assert response.json() == {"error": "an internal error occurred", "error_type": "internal_error"}
        assert response.status_code == 500
        assert server.post("/embed", {"inputs": "fine"}).status_code == 200
    assert SECRET not in caplog.text


def test_a_full_queue_answers_429(start_server: Start, tiny_run: Finished, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = ServingLimits(max_queue_inputs=4, max_inputs=4)
    with start_server(tiny_run.folder, limits) as server, ThreadPoolExecutor() as pool:
        held = Held(server.service.model, monkeypatch)
        first = pool.submit(server.post, "/predict", {"inputs": ["a", "b"]})
        held.wait()
        full = server.post("/predict", {"inputs": ["a", "b", "c"]})
        assert (full.status_code, full.json()["error_type"]) == (429, "queue_full")
        assert full.headers["retry-after"] == "1"
        held.released.set()
        assert first.result().status_code == 200
        assert server.post("/predict", {"inputs": ["a", "b", "c"]}).status_code == 200


def test_a_queue_of_too_many_seconds_answers_429_and_when_to_try_again(
    start_server: Start, tiny_run: Finished, monkeypatch: pytest.MonkeyPatch
) -> None:
    with start_server(tiny_run.folder) as server, ThreadPoolExecutor() as pool:
        assert server.client.get("/health").json()["queue_seconds"] == 0
        held = Held(server.service.model, monkeypatch)
        first = pool.submit(server.post, "/predict", {"inputs": "a", "tasks": "opinion"})
        held.wait()
        batcher = server.service.batcher
        batcher.pace = Pace(tokens=1, seconds=3)
        started = batcher._computing_since
        monkeypatch.setattr(batcher, "clock", lambda: started)
        seconds = server.client.get("/health").json()["queue_seconds"]
        assert (seconds, server.value("polytask_queue_seconds")) == (9, 9)  # three tokens
        for path, body in (("/predict", {"inputs": "b"}), ("/v1/embeddings", {"input": "b", "model": "opinion"})):
            full = server.post(path, body)
            assert (full.status_code, full.headers["retry-after"]) == (429, "8")  # a second is the limit
        monkeypatch.setattr(batcher, "clock", time.monotonic)
        held.released.set()
        assert first.result().status_code == 200
        assert server.post("/predict", {"inputs": "b"}).status_code == 200


def test_the_first_estimate_of_the_pace_is_that_of_a_warm_model(
    tiny_run: Finished, caplog: pytest.LogCaptureFixture
) -> None:
    service = Service(Predictor.load(tiny_run.folder, device="cpu"))
    service.warm_up()
    assert service.batcher.pace.tokens == sum(item.tokens for item in pace_items(service.model, 8192)) >= SMALL_BATCH
    assert service.batcher.pace.seconds > 0
    assert not caplog.records
    service.batcher.pace = Pace(tokens=1, seconds=1)
    service.warn_if_slow()
    assert "largest request (max_inputs is 256, " in caplog.text
    assert "more than deadline_ms (30000)" in caplog.text
    service.close()


def test_requests_that_are_late_while_computed_and_while_queued_answer_503(
    start_server: Start, tiny_run: Finished, monkeypatch: pytest.MonkeyPatch
) -> None:
    with start_server(tiny_run.folder) as server, ThreadPoolExecutor() as pool:
        held = Held(server.service.model, monkeypatch)
        first = pool.submit(server.post, "/predict", {"inputs": "a", "tasks": "opinion"})
        held.wait()  # nothing else is computed before the model is released
        monkeypatch.setattr(server.service, "limits", replace(server.service.limits, deadline_ms=1000))
        late = [server.post("/predict", {"inputs": "while it is queued", "tasks": "opinion"})]
        held.released.set()
        assert first.result().status_code == 200
        server.service.warm_up()  # behind what was queued, which nobody waits for
        assert held.computed == [1, len(probe_items(server.service.model)), PACE_TEXTS]
        held.released.clear()
        late.append(server.post("/predict", {"inputs": "while it is computed", "tasks": "opinion"}))
        held.released.set()
        assert [(one.status_code, one.json()["error_type"]) for one in late] == [(503, "deadline_exceeded")] * 2
        assert server.value("polytask_failures_total", task="opinion", error_type="deadline_exceeded") == 2
        assert server.client.get("/health").json()["queue_inputs"] == 0


def test_requests_of_different_tasks_and_clients_are_computed_together(
    start_server: Start, make_mixed_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    bodies: list[Any] = [
        {"inputs": "fine", "tasks": "opinion"},
        {"inputs": "fine", "tasks": "entities"},
        {"inputs": [["a", "b"]], "tasks": ["question", "articles"]},
        {"inputs": {"text": "a", "options": ["b", "c"]}},
    ]
    with start_server(make_mixed_run(ADAPTER).folder) as server, ThreadPoolExecutor() as pool:
        held = Held(server.service.model, monkeypatch)
        first = pool.submit(server.post, "/embed", {"inputs": "fine"})
        held.wait()
        submitted = Submitted(server.service.batcher, monkeypatch)
        others = [pool.submit(server.post, "/predict", body) for body in bodies]
        submitted.wait(len(bodies))
        held.released.set()
        assert [one.result().status_code for one in (first, *others)] == [200] * 5
        assert held.computed == [1, 5]  # one item for each task with an adapter


def test_too_many_open_requests_answer_429(
    start_server: Start, tiny_run: Finished, monkeypatch: pytest.MonkeyPatch
) -> None:
    with start_server(tiny_run.folder, ServingLimits(max_requests=1)) as server, ThreadPoolExecutor() as pool:
        held = Held(server.service.model, monkeypatch)
        first = pool.submit(server.post, "/predict", {"inputs": "a"})
        held.wait()
        refused = server.post("/predict", {"inputs": "a"})
        assert (refused.status_code, refused.json()["error_type"]) == (429, "too_many_requests")
        assert server.client.get("/live").status_code == 200
        held.released.set()
        assert first.result().status_code == 200


def test_a_body_that_does_not_arrive_in_time_answers_408(start_server: Start, tiny_run: Finished) -> None:
    with start_server(tiny_run.folder, ServingLimits(deadline_ms=100)) as server:
        host, port = server.address.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as slow:
            slow.sendall(b"POST /predict HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{")
            assert slow.makefile("rb").readline() == b"HTTP/1.1 408 Request Timeout\r\n"


def test_sigterm_answers_what_was_accepted_and_refuses_the_rest(
    start_server: Start, tiny_run: Finished, monkeypatch: pytest.MonkeyPatch
) -> None:
    with start_server(tiny_run.folder) as server, ThreadPoolExecutor() as pool:
        held = Held(server.service.model, monkeypatch)
        accepted = pool.submit(server.post, "/predict", {"inputs": "fine"})
        held.wait()
        server.server.handle_exit(15, None)
        refused = httpx2.post(f"{server.address}/predict", json={"inputs": "fine"}, timeout=60)
        assert (refused.status_code, refused.json()["error_type"]) == (503, "shutting_down")
        assert httpx2.get(f"{server.address}/ready", timeout=60).status_code == 503
        assert httpx2.get(f"{server.address}/live", timeout=60).status_code == 200
        held.released.set()
        assert accepted.result().status_code == 200


class Submitted:
    """Counts the requests that are put into the queue, so that a test can wait for them."""

    def __init__(self, batcher: Batcher, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = threading.Semaphore(0)
        submit = batcher.submit

        def counted(*arguments: Any, **options: Any) -> Any:
            future = submit(*arguments, **options)
            self.count.release()
            return future

        monkeypatch.setattr(batcher, "submit", counted)

    def wait(self, requests: int) -> None:
        for _ in range(requests):
            assert self.count.acquire(timeout=60)


def test_a_reload_that_fails_keeps_the_old_model(
    start_server: Start, tiny_run: Finished, make_mixed_run: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with start_server(tiny_run.folder, ServingLimits(max_batch_tokens=200)) as server, caplog.at_level(logging.ERROR):
        start_reload(server.service, tmp_path / "nowhere", {}).join()
        start_reload(server.service, make_mixed_run("none").folder, {"device": "cpu"}).join()
        assert server.post("/predict", {"inputs": "fine"}).status_code == 200
        assert server.client.get("/info").json()["name"] == tiny_run.folder.name
        assert caplog.text.count("not reloaded, and the old one is still served") == 2
        assert "max_batch_tokens is 200, but the longest input of this model has 1,024 tokens" in caplog.text
        old = weakref.ref(server.service.model)
        start_reload(server.service, tiny_run.folder, {"device": "cpu"}).join()
        assert old() is None  # its memory is free
        assert server.client.get("/ready").status_code == 200


def test_reloading_loses_no_request(
    start_server: Start, tiny_run: Finished, make_mixed_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = make_mixed_run("none").folder
    with start_server(tiny_run.folder) as server, ThreadPoolExecutor() as pool:
        held = Held(server.service.model, monkeypatch)
        computing = pool.submit(server.post, "/predict", {"inputs": "fine", "tasks": "opinion"})
        held.wait()
        submitted = Submitted(server.service.batcher, monkeypatch)
        queued = [
            pool.submit(server.post, "/predict", {"inputs": ["fine", "bad"], "tasks": "opinion"}) for _ in range(3)
        ]
        submitted.wait(3)
        assert server.value("polytask_queue_task_inputs", task="opinion") == 6
        server.service.replace(Predictor.load(other, device="cpu"), "other")
        new = pool.submit(server.post, "/predict", {"inputs": "fine"})
        held.released.set()
        (expected,) = load(tiny_run.folder).predict("opinion", "fine")
        for job in (computing, *queued):
            found = job.result().json()["results"][0]["predictions"]["opinion"]
            assert found["probabilities"] == pytest.approx(expected.probabilities, abs=1e-5)
        assert set(new.result().json()["results"][0]["predictions"]) >= {"opinion", "entities", "decision"}
        assert server.client.get("/info").json()["name"] == "other"
