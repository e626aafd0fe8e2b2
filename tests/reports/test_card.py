"""The model card says what summary.json says, in Markdown that no name can break."""

import re
from typing import Any

import pytest
import yaml

from polytask.reports.card import card_page


def summary() -> dict[str, Any]:
    split = {"rows": 12345, "skipped": 2, "lengths": {"mean": 17.25, "truncated": 9}}
    score = {
        "loss": 0.4,
        "primary": "accuracy",
        "examples": 1500,
        "metrics": {
            "accuracy": {"value": 0.8125, "low": 0.7871, "high": 0.8329},
            "f1": {"value": 0.8, "low": 0.7, "high": 0.9},
        },
    }
    pearson = {
        "loss": 0.1,
        "primary": "pearson",
        "examples": 9,
        "metrics": {"pearson": {"value": 0.5, "low": 0.25, "high": 0.75}},
    }
    return {
        "name": "demo",
        "encoder": "minilm",
        "steps": 1234,
        "epochs": 3.0,
        "device": "cpu",
        "best": {"step": 1000, "select": "mean", "value": 0.8},
        "parameters": {
            "encoder": 22713216,
            "adapter_shared": 512,
            "per_task": {"topic": 1925, "same": 385},
            "total": 22716038,
            "trainable": 2822,
        },
        "tasks": {
            "topic": {
                "kind": "classes",
                "classes": ["a|b", "<script>", "`c`"],
                "range": None,
                "text": ["body"],
                "data": {"train": split},
            },
            "same": {"kind": "score", "classes": [], "range": [0, 5], "text": ["one", "two"], "data": {"train": split}},
        },
        "evaluations": {"dev": {"topic": score, "same": pearson}},
        "baselines": {"topic": {"metric": "accuracy", "value": 0.31, "what": "always 'a|b'"}},
    }


@pytest.fixture
def card() -> str:
    return card_page(summary(), "run")


def front(card: str) -> dict[str, Any]:
    _, block, _ = card.split("---\n", 2)
    found: dict[str, Any] = yaml.safe_load(block)
    return found


def test_front_matter(card: str) -> None:
    assert card.startswith("---\n")
    found = front(card)
    assert found["library_name"] == "polytask"
    assert found["base_model"] == "sentence-transformers/all-MiniLM-L6-v2"
    assert "multi-task" in found["tags"]


def test_numbers_are_those_given(card: str) -> None:
    for words in (
        "1,234 steps (3 epochs) on cpu",
        "step 1,000, the best on the dev rows by the mean of all tasks",
        "| topic | one of several classes | dev | accuracy (main) | 0.812 | 0.787 to 0.833 | 1,500 |",
        "| 0.310 (always 'a\\|b') |",
        "| topic | one of several classes | dev | f1 | 0.800 | 0.700 to 0.900 | 1,500 |  |",
        "| same | a score | dev | pearson (main) | 0.500 | 0.250 to 0.750 | 9 |  |",
        "| topic | train | 12,345 | 2 | 17.2 | 9 |",
        "| encoder, shared by all tasks | 22,713,216 |",
        "| adapter, shared by all tasks | 512 |",
        "| only for topic | 1,925 |",
        "| of these, trained | 2,822 |",
        "answers a score from 0 to 5.",
    ):
        assert words in card, words


def test_the_way_to_load_it_is_python(card: str) -> None:
    code = re.search(r"```python\n(.*?)```", card, re.DOTALL)
    assert code is not None
    compile(code[1], "card", "exec")
    assert 'polytask.load("RUN")' in code[1]
    assert 'model.predict("topic", "text")' in code[1]


def test_a_first_task_with_pairs_is_called_with_two_texts() -> None:
    content = summary()
    content["tasks"] = dict(reversed(content["tasks"].items()))
    assert 'model.predict("same", "first text", "second text")' in card_page(content, "run")


def test_names_cannot_break_the_tables() -> None:
    content = summary()
    name = 'a|b\n<img src=x> `c` "d" **e**'
    content["tasks"] = {name: content["tasks"]["topic"]}
    content["evaluations"] = {"dev": {name: content["evaluations"]["dev"]["topic"]}}
    content["name"], content["encoder"], content["baselines"] = name, name, {}
    card = card_page(content, "run")
    assert front(card)["base_model"] == name
    tables = [line for line in card.splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in tables} == {10, 7, 3}
    outside_code = re.sub(r"```python.*?```|(`+).*?\1", "", card.split("---\n", 2)[2], flags=re.DOTALL)
    assert "<img" not in outside_code
    assert "<script" not in outside_code


def test_an_untrained_encoder_has_no_base_model() -> None:
    card = card_page({**summary(), "encoder": "untrained", "evaluations": {}}, "run")
    assert "base_model" not in front(card)
    assert "has not been evaluated" in card


def test_there_are_no_holes(card: str) -> None:
    assert "None" not in card
    assert "\n\n\n" not in card
    assert not re.search(r"[ \t]$", card, re.MULTILINE)


def with_plain_text(alone: bool) -> dict[str, Any]:
    content = summary()
    about = {"kind": "text", "classes": [], "range": None, "text": ["body"], "label": None, "data": {}}
    score = {"loss": 3.0, "primary": "perplexity", "examples": 7, "greater_is_better": False}
    score["metrics"] = {"perplexity": {"value": 20.5, "low": 18.0, "high": 23.0}}
    kept = [] if alone else list(content["tasks"])
    content["tasks"] = {"words": about, **{task: content["tasks"][task] for task in kept}}
    content["evaluations"]["dev"] = {"words": score, **{task: content["evaluations"]["dev"][task] for task in kept}}
    return content


def test_plain_text_is_listed_without_an_example_of_predicting() -> None:
    text = card_page(with_plain_text(alone=False), "run")
    assert "that answers 2 text tasks" in text
    row = "perplexity (main), lower is better | 20.500 | 18.000 to 23.000 | 7 |  |  |"
    assert f"| words | none: plain text | dev | {row}" in text
    assert 'model.predict("topic", "text")' in text


def test_a_model_of_plain_text_only_is_an_encoder() -> None:
    text = card_page(with_plain_text(alone=True), "run")
    assert "encoder: RUN/model" in text
    assert "predict" not in text
    assert "the best on the dev rows by the loss" in text
    assert "pipeline_tag" not in front(text)
