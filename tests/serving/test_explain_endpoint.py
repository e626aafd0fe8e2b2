"""POST /explain and GET /examples on the real server: answers, errors, limits, and batches that go on meanwhile."""

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from polytask import Finished, ServingLimits, load
from polytask.serving import explainer
from polytask.serving.run_examples import run_examples

Running = Any  # of conftest.py
Start = Callable[..., AbstractContextManager[Any]]
TEXT = "The 😀 battery <b>died</b> within a week."


@pytest.mark.parametrize("method", ["integrated_gradients", "occlusion"])
def test_the_same_explanations_as_in_python(tiny_server: Running, tiny_run: Finished, method: Any) -> None:
    body = {"input": TEXT, "task": "opinion", "label": "neutral", "method": method}
    answer = tiny_server.post("/explain", body).json()
    expected = load(tiny_run.folder).explain(TEXT, task="opinion", label="neutral", method=method)
    assert {name: answer[name] for name in body if name != "input"} == {k: v for k, v in body.items() if k != "input"}
    assert answer["texts"] == [TEXT]
    assert answer["value"] == pytest.approx((expected.prediction.probabilities or {})["neutral"], abs=1e-5)
    assert [word["word"] for word in answer["words"]] == [word.word for word in expected.words]
    assert [word["value"] for word in answer["words"]] == pytest.approx([w.value for w in expected.words], abs=1e-5)
    pair = tiny_server.post("/explain", {"input": ["is it?", "it is"], "task": "similarity", "method": method}).json()
    assert isinstance(pair["label"], float)
    assert {word["text"] for word in pair["words"]} == {0, 1}


@pytest.mark.parametrize(
    ("body", "status", "error_type"),
    [
        ({"input": TEXT}, 422, "invalid_request"),
        ({"input": TEXT, "task": "opinions"}, 422, "unknown_task"),
        ({"input": TEXT, "task": "question"}, 422, "invalid_input"),
        ({"input": [TEXT, TEXT], "task": "opinion"}, 422, "invalid_input"),
        ({"input": 7, "task": "opinion"}, 422, "invalid_input"),
        ({"input": " ", "task": "opinion"}, 422, "empty_text"),
        ({"input": TEXT, "task": "opinion", "label": "neutrl"}, 422, "invalid_request"),
        ({"input": TEXT, "task": "opinion", "word": 3}, 422, "invalid_request"),
        ({"input": TEXT, "task": "opinion", "method": "magic"}, 422, "invalid_request"),
        ({"input": "x" * 100_001, "task": "opinion"}, 413, "too_many_characters"),
        ({"input": "a " * 5000, "task": "opinion", "method": "occlusion"}, 422, "too_many_tokens"),
    ],
)
def test_requests_that_are_refused(tiny_server: Running, body: Any, status: int, error_type: str) -> None:
    response = tiny_server.post("/explain", body)
    assert (response.status_code, response.json()["error_type"]) == (status, error_type)
    assert set(response.json()) == {"error", "error_type"}


def test_batches_are_computed_while_a_prediction_is_explained(
    start_server: Start, tiny_run: Finished, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, released = threading.Event(), threading.Event()
    real = explainer.explain_within

    def held(*arguments: Any) -> Any:
        entered.set()
        assert released.wait(60)
        return real(*arguments)

    with start_server(tiny_run.folder) as server, ThreadPoolExecutor(1) as pool:
        alone = server.post("/explain", {"input": TEXT, "task": "opinion"}).json()
        before = server.post("/predict", {"inputs": [TEXT, ["a", "b"]]}).json()
        monkeypatch.setattr(explainer, "explain_within", held)
        waiting = pool.submit(server.post, "/explain", {"input": TEXT, "task": "opinion"})
        assert entered.wait(60)
        assert server.post("/predict", {"inputs": [TEXT, ["a", "b"]]}).json() == before
        monkeypatch.setattr(explainer, "MOST_WAITING", 1)
        refused = server.post("/explain", {"input": TEXT, "task": "opinion"})
        assert (refused.status_code, refused.json()["error_type"]) == (429, "queue_full")
        assert refused.headers["retry-after"] == "1"
        released.set()
        assert waiting.result().json() == alone
        assert server.post("/predict", {"inputs": [TEXT, ["a", "b"]]}).json() == before
        assert server.client.get("/ready").status_code == 200


def test_many_at_once_agree(start_server: Start, tiny_run: Finished) -> None:
    with start_server(tiny_run.folder) as server, ThreadPoolExecutor(8) as pool:
        texts = [f"a text with number {number}" for number in range(8)]
        ask = [("/explain", {"input": text, "task": "opinion"}) for text in texts]
        ask += [("/predict", {"inputs": text, "tasks": "opinion"}) for text in texts]
        alone = [server.post(*one).json() for one in ask]
        together = [one.result().json() for one in [pool.submit(server.post, *one) for one in ask]]
    for one, other in zip(alone, together, strict=True):
        numbers = [[float(n) for n in _numbers(answer)] for answer in (one, other)]
        assert numbers[0] == pytest.approx(numbers[1], abs=1e-5)


def _numbers(answer: Any) -> list[float]:
    if isinstance(answer, dict):
        return [number for value in answer.values() for number in _numbers(value)]
    if isinstance(answer, list):
        return [number for value in answer for number in _numbers(value)]
    return [answer] if isinstance(answer, int | float) else []


def test_the_deadline(start_server: Start, tiny_run: Finished, monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()
    monkeypatch.setattr(explainer, "explain_within", lambda *arguments: released.wait(60))
    with start_server(tiny_run.folder, ServingLimits(deadline_ms=500)) as server:
        late = server.post("/explain", {"input": TEXT, "task": "opinion"})
        released.set()
    assert (late.status_code, late.json()["error_type"]) == (503, "deadline_exceeded")


def test_examples(start_server: Start, tiny_run: Finished, tmp_path: Path) -> None:
    with start_server(tiny_run.folder) as server:
        assert server.client.get("/examples").json() == {"examples": {}}  # rows are shown only if they may be
        server.service.examples_of = tiny_run.folder
        found = server.client.get("/examples").json()["examples"]
        assert {task: len(examples) for task, examples in found.items()} == dict.fromkeys(found, 4)
        assert set(found) == {"opinion", "question", "similarity"}
        for host, is_here in (("localhost", True), ("[::1]:80", True), ("localhost.example.org", False), ("", False)):
            seen = server.client.get("/examples", headers={"host": host}).json()["examples"]
            assert seen == (found if is_here else {})
        server.service.examples_only_here = False
        assert server.client.get("/examples", headers={"host": "example.org"}).json()["examples"] == found
        answers = server.post("/predict", {"inputs": found["question"], "tasks": "question"}).json()["results"]
        assert all("predictions" in one for one in answers)
    (tmp_path / "predictions").mkdir()
    damaged = '{"text": ["x"], "prediction": 1.5}\n{"text'
    (tmp_path / "predictions" / "a-dev.jsonl").write_text(damaged, encoding="utf-8")
    long = json.dumps({"text": ["x" * 1000], "prediction": "yes"})
    (tmp_path / "predictions" / "b-dev.jsonl").write_text(f"{long}\n", encoding="utf-8")
    assert run_examples(tmp_path, ["a", "b", "c"]) == {}
