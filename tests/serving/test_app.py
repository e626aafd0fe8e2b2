"""The real server on a free port: what its endpoints answer, for tasks of all kinds, and which requests they refuse."""

import base64
import html
import json
import re
import shlex
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import openai
import pytest

from polytask import Finished, Prediction, load
from polytask.serving.failures import Failure
from polytask.serving.forms import scoring_task
from polytask.serving.mixed import MixedPredictor

Running = Any  # of conftest.py
ADAPTER = "{name: houlsby, size: 4}"


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


SINGLE = {"opinion", "size", "topics", "entities", "decision"}
PAIRS = {"question", "similarity", "articles", "alike"}
LONG = "good words " * 300
INPUTS: list[tuple[Any, set[str], tuple[Any, ...]]] = [
    ("Is it good?", SINGLE, ("Is it good?",)),
    (LONG, SINGLE, (LONG,)),
    (["is it?", "is it not?"], PAIRS, ("is it?", "is it not?")),
    ({"text2": "is it not?", "text": "is it?"}, PAIRS, ("is it?", "is it not?")),
    ({"texts": ["is it?", LONG]}, PAIRS, ("is it?", LONG)),
    (["one", "two", "three"], {"evidence"}, ("one", "two", "three")),
    ({"text": "is it?", "options": ["yes", "no", "why?"]}, {"reply"}, ("is it?", "yes", "no", "why?")),
    ({"text": "is it?", "options": ["yes", LONG]}, {"reply"}, ("is it?", "yes", LONG)),
    ({"text": ["number", "7", "lives"]}, {"entities"}, (("number", "7", "lives"),)),
]
"""Inputs of all kinds, the tasks that take them, and what they are for `predict`."""


def test_every_kind_of_input_and_task(mixed_server: Running, make_mixed_run: Any) -> None:
    predictor = load(make_mixed_run(ADAPTER).folder)
    results = mixed_server.post("/predict", {"inputs": [one for one, _, _ in INPUTS]}).json()["results"]
    for (_, tasks, example), result in zip(INPUTS, results, strict=True):
        assert set(result["predictions"]) == tasks
        for task, found in result["predictions"].items():
            (expected,) = predictor.stream(task, [example])
            assert_same(found, expected)


def assert_same(found: dict[str, Any], expected: Prediction) -> None:
    """An answer is the prediction of the library."""
    label = [*expected.label] if isinstance(expected.label, tuple) else expected.label
    is_number = isinstance(label, float)
    assert found["label"] == (pytest.approx(label, abs=1e-5, rel=1e-5) if is_number else label)
    shares = expected.probabilities
    assert found.get("probabilities") == (None if shares is None else pytest.approx(dict(shares), abs=1e-5))
    for name in ("tokens", "truncated", "windows", "abstained"):
        assert found[name] == getattr(expected, name)
    assert found.get("index") == expected.index
    if expected.spans is not None:
        assert found["words"] == [*(expected.word_texts or ())]
        assert len(found["label"]) == len(found["words"])
        assert found["word_probabilities"] == pytest.approx(expected.word_probabilities, abs=1e-5)
        assert [(one["start"], one["end"], one["label"], one["text"]) for one in found["spans"]] == [
            (one.start, one.end, one.label, one.text) for one in expected.spans
        ]


def test_windows_and_long_texts(mixed_server: Running) -> None:
    body = {"inputs": [LONG, "short"], "tasks": ["decision", "entities", "opinion"]}
    long, short = (one["predictions"] for one in mixed_server.post("/predict", body).json()["results"])
    assert {task: (one["windows"], one["truncated"]) for task, one in long.items()} == {
        "decision": (4, True),
        "entities": (19, False),  # tags need all of a text
        "opinion": (1, True),
    }
    assert {(one["windows"], one["truncated"]) for one in short.values()} == {(1, False)}
    too_long = mixed_server.post("/predict", {"inputs": "word " * 15_000, "tasks": "entities"})
    assert (too_long.status_code, too_long.json()["error_type"]) == (422, "too_many_tokens")
    tasks = {task["name"]: task for task in mixed_server.client.get("/tasks").json()["tasks"]}
    assert {name: one["max_tokens"] for name, one in tasks.items() if one["has_windows"]} == {
        "decision": 64 + 3 * 31,
        "alike": 64 + 3 * 31,
        "entities": None,
    }
    assert [
        one["windows"] for one in mixed_server.post("/embed", {"inputs": [LONG], "task": "decision"}).json()["results"]
    ] == [4]


def test_bad_options_and_numbers_of_texts_are_errors_of_their_inputs(mixed_server: Running) -> None:
    bad = {
        "1 option(s); expected 2 to 256": {"text": "a", "options": ["b"]},
        "options 0 and 1 (counted from 0) are the same text": {"text": "a", "options": ["b", "b "]},
        "option 0 (counted from 0) is empty": {"text": "a", "options": ["", "b"]},
        "the input has 17 options; at most 16 are accepted": {"text": "a", "options": [str(i) for i in range(17)]},
        "expected a text, a list": {"text": ["a"], "options": ["b", "c"]},
        "the text is empty": {"text": " ", "options": ["b", "c"]},
        "none of the tasks takes 4 texts": ["a", "b", "c", "d"],
    }
    good = {"text": "a", "options": ["b", "c"]}
    results = mixed_server.post("/predict", {"inputs": [good, *bad.values()]}).json()["results"]
    assert set(results[0]["predictions"]) == {"reply"}
    for message, result in zip(bad, results[1:], strict=True):
        assert message in result["error"]
    wrong = mixed_server.post("/predict", {"inputs": ["a", good], "tasks": "reply"}).json()["results"]
    assert wrong[0]["error"] == 'task reply does not take 1 text; it takes {"text": "a", "options": ["b", "c"]}'
    assert set(wrong[1]["predictions"]) == {"reply"}
    for one in (good, ["a", "b"]):
        assert "expected a text" in mixed_server.post("/embed", {"inputs": [one]}).json()["error"]
    unranged = mixed_server.post("/similarity", {"pairs": [["a", "b"]], "task": "articles"}).json()
    assert unranged["range"] is None
    assert mixed_server.post("/similarity", {"pairs": [["a", "b"]], "task": "alike"}).json()["range"] == [0, 5]


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


def test_a_model_without_a_task_that_scores_pairs(tiny_run: Finished, monkeypatch: pytest.MonkeyPatch) -> None:
    model = MixedPredictor(load(tiny_run.folder))
    assert scoring_task(model, None) == "similarity"
    monkeypatch.setattr(model, "tasks", ("opinion",))
    with pytest.raises(Failure, match="no task that scores pairs of texts"):
        scoring_task(model, None)


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


def test_the_examples_of_the_openapi_document_are_answered(tiny_server: Running, mixed_server: Running) -> None:
    for server, shapes in ((tiny_server, 2), (mixed_server, 4)):
        document = server.client.get("/openapi.json").json()
        for path in ("/predict", "/embed", "/similarity", "/rerank", "/v1/embeddings"):
            examples = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["examples"]
            assert len(examples) == (2 * shapes if path == "/predict" else 1)
            for example in examples.values():
                response = server.post(path, example["value"])
                assert response.status_code == 200
                assert "error_type" not in response.text


def test_metrics_have_the_task(tiny_server: Running) -> None:
    before = {task: tiny_server.value("polytask_requests_total", task=task) for task in ("opinion", "similarity")}
    tiny_server.post("/predict", {"inputs": ["fine", ""], "tasks": "opinion"})
    tiny_server.post("/predict", {"inputs": "fine", "tasks": "no such task"})
    tiny_server.post("/embed", {"inputs": "fine"})
    assert tiny_server.value("polytask_requests_total", task="opinion") == before["opinion"] + 1
    assert tiny_server.value("polytask_requests_total", task="similarity") == before["similarity"]
    assert tiny_server.value("polytask_failures_total", task="opinion", error_type="empty_text") >= 1
    assert tiny_server.value("polytask_failures_total", error_type="unknown_task") >= 1
    for name in ("queued", "tokenizing", "computing"):
        assert tiny_server.value(f"polytask_{name}_seconds_count", task="opinion") >= 1
        assert tiny_server.value(f"polytask_{name}_seconds_count", task="(embedding)") >= 1
    assert tiny_server.value("polytask_batch_tokens_count") >= 2
    assert tiny_server.value("polytask_batch_task_tokens_count", task="opinion") >= 1
    assert tiny_server.value("polytask_queue_inputs") == tiny_server.value("polytask_queue_tokens") == 0
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
            assert tiny_server.post(address, body).status_code == 200
        else:
            assert tiny_server.client.get(address).status_code == 200
