"""Scores over whole splits, and the file of predictions."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from polytask.evaluation.evaluate import write_predictions
from polytask.kinds.table import KINDS
from polytask.types import YES_NO, EvalReport, Example, LabelSpace, MetricValue, Prediction, TaskScore


def test_outputs_become_labels() -> None:
    classes = LabelSpace("classes", ("a", "b"))
    assert KINDS["classes"].predicted(torch.tensor([[0.1, 0.3], [2.0, 1.0]]), classes).tolist() == [1, 0]
    assert KINDS["yes_no"].predicted(torch.tensor([-0.1, 0.1]), YES_NO).tolist() == [0, 1]
    scores = KINDS["score"].predicted(torch.tensor([-1.0, 0.25, 3.0]), LabelSpace("score", low=0, high=5))
    np.testing.assert_allclose(scores, [0, 0.25, 1])


def test_predictions_are_written_completely_or_not_at_all(tmp_path: Path) -> None:
    examples = [Example(("one",), "a", 2), Example(("zwei, ähnlich",), None, 3)]
    predictions = [Prediction("t", "a", {"a": 0.75, "b": 0.25}), Prediction("t", 2.5)]
    write_predictions(tmp_path / "p" / "t.jsonl", examples, predictions)
    lines = [json.loads(line) for line in (tmp_path / "p" / "t.jsonl").read_text().splitlines()]
    assert lines[0] == {
        "row": 2,
        "text": ["one"],
        "label": "a",
        "prediction": "a",
        "probabilities": {"a": 0.75, "b": 0.25},
    }
    assert lines[1] == {"row": 3, "text": ["zwei, ähnlich"], "label": None, "prediction": 2.5}
    with pytest.raises(ValueError, match="shorter"):
        write_predictions(tmp_path / "p" / "u.jsonl", examples, predictions[:1])
    assert not (tmp_path / "p" / "u.jsonl").exists()


def test_what_the_best_is_best_at() -> None:
    def score(accuracy: float, f1: float) -> TaskScore:
        metrics = {"accuracy": MetricValue(accuracy, 0, 1), "f1": MetricValue(f1, 0, 1)}
        return TaskScore(0.0, metrics, "accuracy", 10)

    report = EvalReport(1, "dev", {"one": score(0.6, 0.1), "two": score(0.8, 0.9)})
    assert report.chosen("mean") == pytest.approx(0.7)
    assert report.chosen("two") == 0.8
    assert report.chosen("two.f1") == 0.9


def test_plain_text_stays_out_of_the_mean_and_less_of_it_is_better() -> None:
    labelled = TaskScore(0.5, {"accuracy": MetricValue(0.6, 0, 1)}, "accuracy", 10)
    surprised = TaskScore(3.0, {"perplexity": MetricValue(20.0, 18, 22)}, "perplexity", 10, greater_is_better=False)
    calmer = TaskScore(2.0, {"perplexity": MetricValue(7.0, 6, 8)}, "perplexity", 10, greater_is_better=False)
    report = EvalReport(1, "dev", {"one": labelled, "words": surprised})
    assert report.mean == report.chosen("mean") == 0.6
    later = EvalReport(2, "dev", {"one": labelled, "words": calmer})
    assert later.chosen("words") > report.chosen("words")
    assert later.chosen("words.perplexity") > report.chosen("words.perplexity")
    assert EvalReport(2, "dev", {"words": calmer}).mean > EvalReport(1, "dev", {"words": surprised}).mean


@pytest.mark.parametrize(
    ("label", "prediction"),
    [
        ("yes", Prediction("t", 'a "quoted" näme\n', {'a "quoted" näme\n': 2 / 3, "no": 1e-7, "rare": 0.00012345678})),
        ("no", Prediction("t", "no", {"no": float("nan"), "yes": float("nan")})),
        (0.1 + 0.2, Prediction("t", 1 / 3)),
        (0.0, Prediction("t", -0.0)),
        (None, Prediction("t", float("nan"))),
        ("1", Prediction("t", "1", {"1": 1.0, "1.0": 0.0})),
    ],
)
def test_lines_are_those_of_json_dumps(label: str | float | None, prediction: Prediction, tmp_path: Path) -> None:
    """Lines are formatted in another way, because json.dumps is slow for many small objects."""
    example = Example(("a\tb \\ \u2028 \x1b", "ü 😀"), label, 7)
    write_predictions(tmp_path / "p.jsonl", [example], [prediction])
    line: dict[str, Any] = {"row": 7, "text": example.texts, "label": label, "prediction": prediction.label}
    if prediction.probabilities is not None:
        line["probabilities"] = {name: round(p, 6) for name, p in prediction.probabilities.items()}
    assert (tmp_path / "p.jsonl").read_text() == json.dumps(line, ensure_ascii=False) + "\n"
