"""Forgetting and transfer equal those computed by hand."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polytask.evaluation.transfer import backward, forgetting, forward, read_transfer
from polytask.types import Stage

# Tasks a, b and c, learned in this order: before, after a, after b, after c.
SCORES = np.array(
    [
        [0.20, 0.50, 0.10],
        [0.60, 0.55, 0.00],
        [0.50, 0.80, 0.30],
        [0.40, 0.85, 0.90],
    ]
)
LEARNED = [1, 2, 3]


def test_backward_transfer_is_what_later_stages_did() -> None:
    assert backward(SCORES, LEARNED) == pytest.approx(((0.40 - 0.60) + (0.85 - 0.80)) / 2)


def test_forward_transfer_is_measured_right_before_a_tasks_stage() -> None:
    assert forward(SCORES, LEARNED) == pytest.approx(((0.55 - 0.50) + (0.30 - 0.10)) / 2)


def test_forgetting_is_from_the_best_of_all_stages() -> None:
    assert forgetting(SCORES, LEARNED) == pytest.approx([0.60 - 0.40, 0.0, None])
    late = SCORES.copy()
    late[2, 0] = 0.7  # better after the next task than after its own
    assert forgetting(late, LEARNED)[0] == pytest.approx(0.3)
    early = SCORES.copy()
    early[0, 1] = 0.99  # untrained scores were not learned, so they cannot be forgotten
    assert forgetting(early, LEARNED)[1] == 0.0


def test_one_task_has_nothing_before_or_after_it() -> None:
    scores = SCORES[:2, :1]
    assert backward(scores, [1]) is None
    assert forward(scores, [1]) is None
    assert forgetting(scores, [1]) == [None]


def line(step: int, *values: float) -> dict[str, Any]:
    tasks = {
        task: {"primary": "f1", "metrics": {"f1": {"value": v, "low": 0, "high": 1}, "accuracy": {"value": 0.123}}}
        for task, v in zip("abc", values, strict=True)
    }
    return {"kind": "evaluation", "step": step, "split": "dev", "tasks": tasks, "best": False}


def written(path: Path, lines: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(entry) + "\n" for entry in lines))
    return path


STAGES = (Stage("a", 1, 4), Stage("b", 5, 9), Stage("c", 10, 12))


def test_read_from_a_runs_journal(tmp_path: Path) -> None:
    other = [{"kind": "step", "step": 4, "losses": {}}, line(6, 0.9, 0.9, 0.9)]
    ends = [line(step, *row) for step, row in zip([0, 4, 9, 12], SCORES.tolist(), strict=True)]
    found = read_transfer(written(tmp_path / "metrics.jsonl", [*other, *ends]), STAGES)
    assert found is not None
    assert found["scores"] == SCORES.tolist()
    assert found["metrics"] == dict.fromkeys("abc", "f1")
    assert found["stages"][1] == {"task": "b", "first": 5, "last": 9}
    assert found["forgetting"] == {"a": pytest.approx(0.2), "b": 0.0, "c": None}
    assert found["mean_forgetting"] == pytest.approx(0.1)
    assert found["backward"] == pytest.approx(-0.075)
    assert json.loads(json.dumps(found)) == found


def test_columns_come_in_the_order_of_learning(tmp_path: Path) -> None:
    turned = (Stage("c", 1, 4), Stage("a", 5, 9), Stage("b", 10, 12))
    ends = [line(step, *row) for step, row in zip([0, 4, 9, 12], SCORES.tolist(), strict=True)]
    found = read_transfer(written(tmp_path / "metrics.jsonl", ends), turned)
    assert found is not None
    assert found["scores"] == SCORES[:, [2, 0, 1]].tolist()
    assert found["backward"] == pytest.approx(((0.90 - 0.00) + (0.40 - 0.50)) / 2)


def test_plain_text_has_a_stage_and_no_column(tmp_path: Path) -> None:
    ends = [line(step, *row) for step, row in zip([0, 4, 9, 12], SCORES.tolist(), strict=True)]
    for entry in ends:
        b = entry["tasks"]["b"]
        b |= {"greater_is_better": False, "primary": "perplexity", "metrics": {"perplexity": b["metrics"]["f1"]}}
    found = read_transfer(written(tmp_path / "metrics.jsonl", ends), STAGES)
    assert found is not None
    assert [len(row) for row in found["scores"]] == [2] * 4
    assert found["backward"] == pytest.approx(0.40 - 0.60)
    assert found["forward"] == pytest.approx(0.30 - 0.10)


def test_where_lower_is_better_forgetting_is_a_rise(tmp_path: Path) -> None:
    ends = [line(step, *row) for step, row in zip([0, 4, 9, 12], (1 - SCORES).tolist(), strict=True)]
    for entry in ends:
        for task in "abc":
            entry["tasks"][task] |= {"greater_is_better": False}
    found = read_transfer(written(tmp_path / "metrics.jsonl", ends), STAGES)
    assert found is not None
    assert found["scores"] == (1 - SCORES).tolist()
    assert found["forgetting"] == {"a": pytest.approx(0.2), "b": pytest.approx(0.0), "c": None}
    assert found["backward"] == pytest.approx(-0.075)


def test_a_stage_that_was_not_reached(tmp_path: Path) -> None:
    path = written(tmp_path / "metrics.jsonl", [line(0, 0.1, 0.1, 0.1), line(4, 0.2, 0.2, 0.2)])
    assert read_transfer(path, STAGES) is None
