"""The real server on a free port: endpoints, errors, limits, the API key, stopping and reloading."""

import base64
import html
import json
import logging
import re
import shlex
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any

import httpx2
import numpy as np
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from polytask import Finished, Predictor, ServingLimits, load
from polytask.serving.mixed import MixedPredictor

Running = Any  # of conftest.py
Start = Callable[..., AbstractContextManager[Any]]

SECRET = "a text that no log may have"


def value(server: Running, name: str, **labels: str) -> float:
    """The value of a metric."""
    text = server.client.get("/metrics").text
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return sum(s.value for s in samples if s.name == name and labels.items() <= s.labels.items())


# --- predictions ------------------------------------------------------------------------------------------------------
def test_one_task_several_or_all_for_one_input_or_many(tiny_server: Running, tiny_run: Finished) -> None:
    predictor = load(tiny_run.folder)
    answer = tiny_server.post("/predict", {"inputs": "fine", "tasks": "opinion"}).json()
    (expected,) = predictor.predict("opinion", "fine")
    found = answer["results"][0]["predictions"]["opinion"]
    assert found["label"] == expected.label
    assert found["probabilities"] == pytest.approx(expected.probabilities, abs=1e-5)
    assert (found["tokens"], found["truncated"], found["abstained"]) == (expected.tokens, False, False)
    pair = tiny_server.post("/predict", {"inputs": {"text": "is it?", "text2": "is it not?"}}).json()["results"][0]
    assert set(pair["predictions"]) == {"question", "similarity"}
    assert 0 <= pair["predictions"]["similarity"]["label"] <= 5
    assert set(pair["predictions"]["question"]["probabilities"]) == {"no", "yes"}
    both = tiny_server.post("/predict", {"inputs": ["fine", ["is it?", "is it not?"]]}).json()["results"]
    assert [set(one["predictions"]) for one in both] == [{"opinion"}, {"question", "similarity"}]
    similarity = both[1]["predictions"]["similarity"]["label"]
    assert similarity == pytest.approx(pair["predictions"]["similarity"]["label"], abs=1e-5)
    several = {"inputs": [["a", "b"]], "tasks": ["similarity", "question", "question"]}
    assert set(tiny_server.post("/predict", several).json()["results"][0]["predictions"]) == {"question", "similarity"}
    assert tiny_server.post("/predict", {"inputs": []}).json() == {"results": []}


def test_the_probabilities_of_an_answer(tiny_server: Running) -> None:
    for choice, count in (("all", 5), ("top", 1), ("none", 0)):
        body = {"inputs": "fine", "tasks": "opinion", "probabilities": choice}
        found = tiny_server.post("/predict", body).json()["results"][0]["predictions"]["opinion"]
        assert len(found.get("probabilities", {})) == count


def test_one_bad_input_does_not_fail_the_others(tiny_server: Running) -> None:
    bad = {
        3: "",
        5: 7,
        8: ["a", "b", "c"],
        9: None,
        11: {"txt": "a"},
        13: "x" * 100_001,
        14: ["a", "b"],
        20: [["a"], "b"],
    }
    inputs = [bad.get(i, f"text number {i}") for i in range(32)]
    response = tiny_server.post("/predict", {"inputs": inputs, "tasks": "opinion"})
    assert response.status_code == 200
    results = response.json()["results"]
    assert {i for i, one in enumerate(results) if "error" in one} == set(bad)
    assert results[3] == {"error": "the text is empty", "error_type": "empty_text"}
    assert results[13]["error_type"] == "too_many_characters"
    assert results[14] == {"error": "task opinion does not take 2 texts", "error_type": "invalid_input"}
    assert all("opinion" in one["predictions"] for i, one in enumerate(results) if i not in bad)


def test_a_request_whose_inputs_are_all_bad_is_an_error(tiny_server: Running) -> None:
    response = tiny_server.post("/predict", {"inputs": ["", " "]})
    assert response.status_code == 422
    assert response.json()["error_type"] == "empty_text"
    assert len(response.json()["results"]) == 2
    words = tiny_server.post("/predict", {"inputs": {"text": ["some", "words"]}})
    assert words.json()["error"] == "none of the tasks takes 1 text as a list of words"


def test_truncation_is_reported_and_chosen(tiny_server: Running) -> None:
    long = "good " * 100 + "bad " * 100
    found = {}
    for truncate in ("model", "end", "start"):
        body = {"inputs": ["fine", long], "tasks": "opinion", "truncate": truncate}
        short, found[truncate] = (
            r["predictions"]["opinion"] for r in tiny_server.post("/predict", body).json()["results"]
        )
        assert not short["truncated"]
        assert found[truncate]["truncated"]
        assert found[truncate]["tokens"] == 202
    assert found["model"]["probabilities"] == pytest.approx(found["end"]["probabilities"], abs=1e-5)
    assert found["start"]["probabilities"] != pytest.approx(found["end"]["probabilities"], abs=1e-5)
    refused = tiny_server.post("/predict", {"inputs": ["fine", long], "tasks": "opinion", "truncate": "error"}).json()
    assert refused["results"][1]["error_type"] == "too_many_tokens"
    assert "predictions" in refused["results"][0]


def test_strange_texts_are_answered(tiny_server: Running) -> None:
    body = rb'{"inputs": ["\ud800", "\u0000", "[CLS]", "\ud83d\ude00"], "tasks": "opinion"}'
    response = tiny_server.client.post("/predict", content=body, headers={"content-type": "application/json"})
    assert response.status_code == 200
    assert all("predictions" in one for one in response.json()["results"])


def test_tags_of_words(start_server: Start, make_mixed_run: Any) -> None:
    with start_server(make_mixed_run("{name: houlsby, size: 4}").folder) as server:
        inputs = ["Ada Lovelace lived in London.", {"text": ["Ada", "lived", "in", "London"]}, "word " * 500]
        body = {"inputs": inputs, "tasks": "entities"}
        found = [one["predictions"]["entities"] for one in server.post("/predict", body).json()["results"]]
        assert found[1]["words"] == ["Ada", "lived", "in", "London"]
        assert [len(one["label"]) for one in found] == [len(one["words"]) for one in found]
        assert len(found[2]["words"]) == 500
        assert not found[2]["truncated"]  # long texts are read in windows
        too_long = server.post("/predict", {"inputs": "word " * 15_000, "tasks": "entities"})
        assert (too_long.status_code, too_long.json()["error_type"]) == (422, "too_many_tokens")
        everything = server.post("/predict", {"inputs": ["Not bad.", ["a", "b"]]}).json()["results"]
        assert [set(one["predictions"]) for one in everything] == [
            {"opinion", "entities"},
            {"question", "similarity", "articles"},
        ]
        assert server.post("/similarity", {"pairs": [["a", "b"]], "task": "articles"}).json()["range"] is None


def test_similarity_and_rerank(tiny_server: Running, tiny_run: Finished) -> None:
    predictor = load(tiny_run.folder)
    pairs = [["is it?", "is it not?"], ["why", "because"], ["", "b"]]
    answer = tiny_server.post("/similarity", {"pairs": pairs}).json()
    assert (answer["task"], answer["range"]) == ("similarity", [0, 5])
    scores = [p.label for p in predictor.predict("similarity", [("is it?", "is it not?"), ("why", "because")])]
    assert [one["score"] for one in answer["results"][:2]] == pytest.approx(scores, abs=1e-4)
    assert answer["results"][2]["error_type"] == "empty_text"
    yes = tiny_server.post("/similarity", {"pairs": pairs[:1], "task": "question"}).json()
    (expected,) = predictor.predict("question", "is it?", "is it not?")
    assert expected.probabilities is not None
    assert yes["results"][0]["score"] == pytest.approx(expected.probabilities["yes"], abs=1e-5)
    documents = ["is it not?", "because", "", "how much does it cost?"]
    body = {"query": "is it?", "documents": documents, "return_documents": True}
    ranked = tiny_server.post("/rerank", body).json()
    order = [one["score"] for one in ranked["results"]]
    assert order == sorted(order, reverse=True)
    assert {one["index"]: one["document"] for one in ranked["results"]} == {i: documents[i] for i in (0, 1, 3)}
    assert [one["index"] for one in ranked["errors"]] == [2]
    assert len(tiny_server.post("/rerank", {**body, "top_n": 1}).json()["results"]) == 1
    refused = tiny_server.post("/rerank", {**body, "task": "opinion"})
    assert refused.status_code == 422
    assert "does not score pairs of texts; these do: similarity, question" in refused.json()["error"]


# --- embeddings -------------------------------------------------------------------------------------------------------
def test_embeddings(tiny_server: Running, tiny_run: Finished) -> None:
    predictor = load(tiny_run.folder)
    answer = tiny_server.post("/embed", {"inputs": ["fine", "", "word " * 100], "normalize": True}).json()["results"]
    expected = predictor.embed(["fine", "word " * 100])
    np.testing.assert_allclose(answer[0]["embedding"], expected[0], atol=1e-5)
    np.testing.assert_allclose(answer[2]["embedding"], expected[1], atol=1e-5)
    assert [one.get("truncated") for one in answer] == [False, None, True]
    assert answer[1]["error_type"] == "empty_text"
    refused = tiny_server.post("/embed", {"inputs": "a", "task": "opinions"})
    assert (refused.status_code, refused.json()["error_type"]) == (422, "unknown_task")
    assert "did you mean opinion?" in refused.json()["error"]


def numbers(embedding: Any) -> Any:
    """The client leaves base64 to its caller, if the caller asked for it."""
    return np.frombuffer(base64.b64decode(embedding), "<f4") if isinstance(embedding, str) else embedding


@pytest.mark.parametrize("encoding", ["float", "base64", None])
def test_the_openai_client(tiny_server: Running, tiny_run: Finished, encoding: Any) -> None:
    with openai.OpenAI(base_url=f"{tiny_server.address}/v1", api_key="not-needed", max_retries=0) as client:
        name, *tasks = [model.id for model in client.models.list()]
        assert (name, set(tasks)) == (tiny_run.folder.name, {"opinion", "question", "similarity"})
        more = {} if encoding is None else {"encoding_format": encoding}
        found = client.embeddings.create(input=["fine", "a longer text"], model=name, **more)
        expected = load(tiny_run.folder).embed(["fine", "a longer text"])
        np.testing.assert_allclose([numbers(one.embedding) for one in found.data], expected, atol=1e-5)
        assert [one.index for one in found.data] == [0, 1]
        assert (found.model, found.usage.prompt_tokens) == (name, 3 + 5)
        one = client.embeddings.create(input="fine", model="opinion", **more)
        np.testing.assert_allclose(numbers(one.data[0].embedding), expected[0], atol=1e-5)
        with pytest.raises(openai.NotFoundError, match="there is no model"):
            client.embeddings.create(input="fine", model="https://example.org/model")
        with pytest.raises(openai.UnprocessableEntityError, match="input 1"):
            client.embeddings.create(input=["fine", ""], model=name)
        with pytest.raises(openai.UnprocessableEntityError, match="dimensions: must be 32"):
            client.embeddings.create(input="fine", model=name, dimensions=64)


# --- the state --------------------------------------------------------------------------------------------------------
def test_what_the_server_says_about_itself(tiny_server: Running, tiny_run: Finished) -> None:
    tasks = {task["name"]: task for task in tiny_server.client.get("/tasks").json()["tasks"]}
    assert tasks["similarity"]["range"] == [0, 5]
    assert tasks["opinion"]["classes"] == ["very negative", "negative", "neutral", "positive", "very positive"]
    assert [tasks[name]["texts"] for name in ("opinion", "question", "similarity")] == [1, 2, 2]
    info = tiny_server.client.get("/info").json()
    assert (info["name"], info["hidden"], info["max_length"]) == (tiny_run.folder.name, 32, 64)
    assert info["limits"]["max_batch_tokens"] == 8192
    assert tiny_server.client.get("/live").json() == {"live": True}
    assert tiny_server.client.get("/ready").json() == {"ready": True}
    assert tiny_server.client.get("/health").json()["queue_inputs"] == 0
    document = tiny_server.client.get("/openapi.json").json()
    for path in ("/predict", "/embed", "/similarity", "/rerank", "/v1/embeddings"):
        examples = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["examples"]
        for example in examples.values():
            body = {**example["value"], "model": "opinion"} if path == "/v1/embeddings" else example["value"]
            assert tiny_server.post(path, body).status_code == 200


def test_metrics_have_the_task(tiny_server: Running) -> None:
    before = {task: value(tiny_server, "polytask_requests_total", task=task) for task in ("opinion", "similarity")}
    tiny_server.post("/predict", {"inputs": ["fine", ""], "tasks": "opinion"})
    tiny_server.post("/predict", {"inputs": "fine", "tasks": "no such task"})
    tiny_server.post("/embed", {"inputs": "fine"})
    assert value(tiny_server, "polytask_requests_total", task="opinion") == before["opinion"] + 1
    assert value(tiny_server, "polytask_requests_total", task="similarity") == before["similarity"]
    assert value(tiny_server, "polytask_failures_total", task="opinion", error_type="empty_text") >= 1
    assert value(tiny_server, "polytask_failures_total", error_type="unknown_task") >= 1
    for name in ("queued", "tokenizing", "computing"):
        assert value(tiny_server, f"polytask_{name}_seconds_count", task="opinion") >= 1
        assert value(tiny_server, f"polytask_{name}_seconds_count", task="(embedding)") >= 1
    assert value(tiny_server, "polytask_batch_tokens_count") >= 2
    assert value(tiny_server, "polytask_queue_inputs") == value(tiny_server, "polytask_queue_tokens") == 0
    assert "no such task" not in tiny_server.client.get("/metrics").text


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/predict", {}, "inputs: Field required"),
        ("/predict", {"inputs": "a", "task": "opinion"}, "task: Extra inputs are not permitted"),
        ("/predict", {"inputs": "a", "tasks": []}, "must name at least one task"),
        ("/predict", {"inputs": "a", "truncate": "middle"}, "truncate: Input should be"),
        ("/predict", [], "body: Input should be"),
        ("/rerank", {"query": "a", "documents": ["b"], "top_n": 0}, "top_n"),
    ],
)
def test_requests_that_are_refused(tiny_server: Running, path: str, body: Any, message: str) -> None:
    response = tiny_server.post(path, body)
    assert response.status_code == 422
    assert set(response.json()) == {"error", "error_type"}
    assert message in response.json()["error"]


def test_bodies_that_are_no_json_and_paths_that_do_not_exist(tiny_server: Running) -> None:
    post = tiny_server.client.post
    is_json = {"content-type": "application/json"}
    for body in (b"", b"{", b"\xff", b"[" * 100_000, b'{"inputs": ' + b"9" * 10_000 + b"}"):
        response = post("/predict", content=body, headers=is_json)
        assert (response.status_code, response.json()["error_type"]) == (422, "invalid_request")
    assert post("/predict", content=b'{"inputs": "a"}', headers={"content-type": "text/plain"}).status_code == 422
    assert post("/load", json={}).json() == {"error": "Not Found", "error_type": "not_found"}
    refused = tiny_server.client.get("/predict")
    assert (refused.status_code, refused.json()["error_type"]) == (405, "method_not_allowed")
    assert refused.headers["allow"] == "POST"


# --- limits, the key, crashes -----------------------------------------------------------------------------------------
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
        except httpx2.WriteError:
            pass  # the server has closed the connection before all was sent
        assert sent < 10_000_000
        assert value(server, "polytask_failures_total", error_type="body_too_large") == 1
        announced = server.post("/predict", {"inputs": "x" * 20_000})
        assert announced.status_code == 413
        many = server.post("/predict", {"inputs": ["a"] * 4})
        assert (many.status_code, many.json()["error_type"]) == (413, "too_many_inputs")
        characters = server.post("/predict", {"inputs": "x" * 1001})
        assert (characters.status_code, characters.json()["error_type"]) == (413, "too_many_characters")
        assert server.post("/predict", {"inputs": ["a"] * 3}).status_code == 200


def test_the_api_key(start_server: Start, tiny_run: Finished) -> None:
    with start_server(tiny_run.folder, api_key="correct-horse") as server:
        for key in (None, "wrong-horse", "correct-horse2", "correct-hors", "é"):
            headers = {} if key is None else {"authorization": f"Bearer {key}".encode()}
            for path in ("/predict", "/metrics", "/openapi.json", "/nowhere"):
                response = server.client.request("POST" if path == "/predict" else "GET", path, headers=headers)
                assert (response.status_code, response.json()["error_type"]) == (401, "unauthorized")
        assert server.client.get("/live").status_code == server.client.get("/ready").status_code == 200
        right = {"authorization": "Bearer correct-horse"}
        assert server.post("/predict", {"inputs": "fine"}, headers=right).status_code == 200
        with openai.OpenAI(base_url=f"{server.address}/v1", api_key="correct-horse", max_retries=0) as client:
            assert client.embeddings.create(input="fine", model="opinion").data


class Held:
    """Replaces a model's `compute` by one that waits until it is released, and then maybe fails."""

    def __init__(self, model: MixedPredictor, monkeypatch: pytest.MonkeyPatch) -> None:
        self.entered, self.released = threading.Semaphore(0), threading.Event()
        self.error: Exception | None = None
        compute = model.compute

        def held(items: Any) -> Any:
            self.entered.release()
            self.released.wait()
            if self.error is not None:
                raise self.error
            return compute(items)

        monkeypatch.setattr(model, "compute", held)


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


def test_a_full_queue_answers_429_and_a_late_request_503(
    start_server: Start, tiny_run: Finished, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = ServingLimits(max_queue_inputs=4, max_inputs=4, deadline_ms=200, max_wait_ms=0)
    with start_server(tiny_run.folder, limits) as server, ThreadPoolExecutor() as pool:
        held = Held(server.service.model, monkeypatch)
        first = pool.submit(server.post, "/predict", {"inputs": ["a", "b"]})
        held.entered.acquire()
        full = server.post("/predict", {"inputs": ["a", "b", "c"]})
        assert (full.status_code, full.json()["error_type"]) == (429, "queue_full")
        assert full.headers["retry-after"] == "1"
        queued = server.post("/predict", {"inputs": "while it is queued"})
        for late in (first.result(), queued):
            assert (late.status_code, late.json()["error_type"]) == (503, "deadline_exceeded")
        held.released.set()
        server.service.batcher.submit([], 0).result()
        assert server.client.get("/health").json()["queue_inputs"] == 0


def test_sigterm_answers_what_was_accepted_and_refuses_the_rest(
    start_server: Start, tiny_run: Finished, monkeypatch: pytest.MonkeyPatch
) -> None:
    with start_server(tiny_run.folder) as server, ThreadPoolExecutor() as pool:
        held = Held(server.service.model, monkeypatch)
        accepted = pool.submit(server.post, "/predict", {"inputs": "fine"})
        held.entered.acquire()
        server.server.handle_exit(15, None)
        refused = httpx2.post(f"{server.address}/predict", json={"inputs": "fine"})
        assert (refused.status_code, refused.json()["error_type"]) == (503, "shutting_down")
        assert httpx2.get(f"{server.address}/ready").status_code == 503
        assert httpx2.get(f"{server.address}/live").status_code == 200
        held.released.set()
        assert accepted.result().status_code == 200


def test_reloading_loses_no_request(
    start_server: Start, tiny_run: Finished, make_mixed_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = make_mixed_run("none").folder
    with start_server(tiny_run.folder) as server, ThreadPoolExecutor() as pool:
        held = Held(server.service.model, monkeypatch)
        computing = pool.submit(server.post, "/predict", {"inputs": "fine", "tasks": "opinion"})
        held.entered.acquire()
        queued = [
            pool.submit(server.post, "/predict", {"inputs": ["fine", "bad"], "tasks": "opinion"}) for _ in range(3)
        ]
        while server.service.batcher.inputs < 7:
            threading.Event().wait(0.001)
        server.service.replace(Predictor.load(other, device="cpu"), "other")
        new = pool.submit(server.post, "/predict", {"inputs": "fine"})
        held.released.set()
        (expected,) = load(tiny_run.folder).predict("opinion", "fine")
        for job in (computing, *queued):
            found = job.result().json()["results"][0]["predictions"]["opinion"]
            assert found["probabilities"] == pytest.approx(expected.probabilities, abs=1e-5)
        assert set(new.result().json()["results"][0]["predictions"]) == {"opinion", "entities"}
        assert server.client.get("/info").json()["name"] == "other"


def test_many_clients_get_their_own_answers(tiny_server: Running, tiny_run: Finished) -> None:
    predictor = load(tiny_run.folder)
    texts = [f"text number {i} " * (i % 5 + 1) for i in range(40)]
    with ThreadPoolExecutor(16) as pool:
        requests = [{"inputs": text, "tasks": "opinion"} for text in texts]
        answers = list(pool.map(lambda body: tiny_server.post("/predict", body).json(), requests))
    for text, answer in zip(texts, answers, strict=True):
        found = answer["results"][0]["predictions"]["opinion"]["probabilities"]
        assert found == pytest.approx(predictor.predict("opinion", text)[0].probabilities, abs=1e-5)


def test_the_reference_page_loads_nothing_and_its_commands_are_right(tiny_server: Running) -> None:
    page = tiny_server.client.get("/docs")
    assert page.headers["content-security-policy"].startswith("default-src 'none'")
    assert "<script" not in page.text
    assert "src=" not in page.text
    commands = [html.unescape(command) for command in re.findall("<pre>(.*?)</pre>", page.text, re.DOTALL)]
    assert len(commands) >= 12
    for command in commands:
        curl, address, *options = shlex.split(command.replace("\\\n", " "))
        assert curl == "curl"
        assert address.startswith(tiny_server.address)
        if options:
            body = json.loads(options[options.index("-d") + 1])
            body |= {"model": "opinion"} if "model" in body else {}
            assert tiny_server.post(address, body).status_code == 200
        else:
            assert tiny_server.client.get(address).status_code == 200
