"""Scores over whole splits, and predictions on disk."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from polytask.evaluation.evaluate import decided, write_predictions
from polytask.types import YES_NO, EvalReport, Example, LabelSpace, MetricValue, Prediction, TaskScore


def test_outputs_become_labels() -> None:
    classes = LabelSpace("classes", ("a", "b"))
    assert decided(torch.tensor([[0.1, 0.3], [2.0, 1.0]]), classes).tolist() == [1, 0]
    assert decided(torch.tensor([-0.1, 0.1]), YES_NO).tolist() == [0, 1]
    scores = decided(torch.tensor([-1.0, 0.25, 3.0]), LabelSpace("score", low=0, high=5))
    np.testing.assert_allclose(scores, [0, 0.25, 1])


def test_predictions_are_written_whole_or_not_at_all(tmp_path: Path) -> None:
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
