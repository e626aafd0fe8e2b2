"""study.md shows study.json in a valid Markdown table."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from polytask.studies import table
from polytask.types import UserError


def score(mean: float) -> dict[str, Any]:
    return {"mean": mean, "low": mean - 0.005, "high": mean + 0.004, "values": [mean], "examples": 900}


def cell(seed: int, state: str = "done", error: str | None = None) -> dict[str, Any]:
    return {"seed": seed, "run": f"cells/{seed}", "state": state, "error": error, "values": {}}


def comparison(variant: str, task: str, claim: str, difference: float) -> dict[str, Any]:
    said = f"{variant} on {task}: {claim} [1.0, 2.0]"
    known = {"difference": difference, "sentence": said, "seed_noise_known": True}
    return {"variant": variant, "task": task, "claim": claim, **known}


@pytest.fixture
def study() -> dict[str, Any]:
    cost = {
        "parameters": {"shared": 22_000_000, "per_task": {"topic": 10}, "trainable": 1_234_567, "total": 22_000_010},
        "examples_per_second": 151.26,
        "peak_memory_bytes": 3 * 2**29,
        "seconds": 723.4,
    }
    scores = {"topic": score(0.861), "same": score(0.9), "mean": score(0.88)}
    return {
        "format": 2,
        "name": "Adapters",
        "reference": "plain",
        "seeds": [0, 1],
        "tasks": {
            "topic": {"kind": "classes", "metric": "accuracy", "examples": 900},
            "same": {"kind": "score", "metric": "pearson", "examples": 800},
        },
        "variants": {
            "plain": {"settings": {}, "cells": [cell(0), cell(1)], "scores": scores, "cost": cost},
            "a|b <i>": {
                "settings": {},
                "cells": [cell(0, "failed", "Traceback:\n  x\nValueError: a | b\n"), cell(1, "missing")],
                "scores": {},
                "cost": None,
            },
        },
        "comparisons": [
            comparison("x", "topic", "undecided", 0.0),
            comparison("y", "topic", "same", 0.001),
            comparison("x", "same", "better", 0.01),
            comparison("y", "same", "better", 0.03),
            comparison("x", "mean", "worse", -0.02),
            comparison("y", "mean", "better", 0.01),
        ],
        "environment": {"cpu": "EPYC", "device": "cpu", "torch": "2.13.0", "polytask": "0.1.0", "commit": "abc"},
        "started": "2026-11-20T09:12:44+00:00",
    }


def rows(text: str) -> list[list[str]]:
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[part.strip() for part in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def test_the_table_has_scores_in_points_and_costs(study: dict[str, Any]) -> None:
    head, rule, plain, broken = rows(table.study_markdown(study))
    assert head[:4] == ["Variant", "topic (accuracy)", "same (pearson)", "mean"]
    assert head[4:] == ["Trainable parameters", "Examples/s", "Peak memory", "Time"]
    assert len(rule) == len(plain) == len(broken) == len(head)
    assert plain[:3] == ["plain (reference)", "86.1 [85.6, 86.5]", "90.0 [89.5, 90.4]"]
    assert plain[4:] == ["1,234,567", "151", "1.5 GiB", "12 min 03 s"]
    assert broken == [r"a\|b \<i>", *[table.ABSENT] * 7]


def test_forgetting_is_a_column_for_sequential_tasks(study: dict[str, Any]) -> None:
    assert "orgotten" not in table.study_markdown(study)
    study["variants"]["plain"]["cost"]["forgetting"] = 0.1234
    text = table.study_markdown(study)
    head, rule, plain, broken = rows(text)
    assert head[3:6] == ["mean", "Forgotten", "Trainable parameters"]
    assert len(rule) == len(plain) == len(broken) == len(head)
    assert (plain[4], broken[4]) == ("12.3", table.ABSENT)
    assert table.FORGOTTEN in text


def test_title_date_and_hardware(study: dict[str, Any]) -> None:
    lines = table.study_markdown(study).splitlines()
    assert lines[0] == "# Adapters"
    assert lines[2] == "2026-11-20 · EPYC · cpu · torch 2.13.0 · polytask 0.1.0 · commit abc · seeds 0, 1"


def test_sentences_are_a_list_claims_first_the_largest_first(study: dict[str, Any]) -> None:
    said = re.findall(r"^- (\w on \w+: [\w ]+) \[1.0, 2.0\]$", table.study_markdown(study), re.MULTILINE)
    better = ["y on mean: better", "y on same: better", "x on same: better"]
    assert said == [*better, "x on mean: worse", "y on topic: same", "x on topic: undecided"]


def test_failed_and_missing_runs_are_listed(study: dict[str, Any]) -> None:
    text = table.study_markdown(study)
    assert r"- a\|b \<i>, seed 0: ValueError: a \| b" in text
    assert "1 of 4 runs are missing" in text


def test_the_table_shows_whether_seed_noise_is_known(study: dict[str, Any]) -> None:
    assert "over examples and seeds together" in table.study_markdown(study)
    study["comparisons"][0]["seed_noise_known"] = False
    assert "Where a variant has one seed: seed noise is unknown" in table.study_markdown(study)
    study |= {"comparisons": [], "seeds": [0]}
    assert "One seed: seed noise is unknown" in table.study_markdown(study)


def test_a_metric_that_is_better_when_lower_is_marked(study: dict[str, Any]) -> None:
    study["tasks"]["same"] |= {"metric": "rmse", "greater_is_better": False}
    assert rows(table.study_markdown(study))[0][2] == "same (rmse, lower is better)"


def test_with_one_task_there_is_no_mean(study: dict[str, Any]) -> None:
    del study["tasks"]["same"]
    assert rows(table.study_markdown(study))[0][:3] == ["Variant", "topic (accuracy)", "Trainable parameters"]
    assert table.main_score(study) == "topic"


def test_before_the_first_run_has_finished(study: dict[str, Any]) -> None:
    study |= {"tasks": {}, "comparisons": []}
    study["variants"] = {"plain": {"settings": {}, "cells": [cell(0, "missing")], "scores": {}, "cost": None}}
    assert rows(table.study_markdown(study))[2] == ["plain (reference)", *[table.ABSENT] * 4]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a|b\nc", r"a\|b c"),
        ("[x](y)", r"[x]\(y)"),
        ("pal_small", "pal_small"),
        ("_x_ *y* `z`", r"\_x\_ \*y\* \`z\`"),
        ("<b>&lt;", r"\<b>&amp;lt;"),
        ("# x", r"\# x"),
        ("1.0 [0.5, 1.5]", "1.0 [0.5, 1.5]"),
    ],
)
def test_nothing_becomes_markup(text: str, shown: str) -> None:
    assert table.escaped(text) == shown


def test_numbers_as_they_are_written() -> None:
    assert [table.points(x) for x in (0.8614, -0.0001, None, float("nan"))] == [
        "86.1",
        "0.0",
        table.ABSENT,
        table.ABSENT,
    ]
    assert [table.points(x, sign=True) for x in (0.012, -0.012, 0.0)] == ["+1.2", "-1.2", "0.0"]
    assert [table.seconds(x) for x in (5.04, 59.96, 723, 3725)] == ["5.0 s", "1 min 00 s", "12 min 03 s", "1 h 02 min"]
    assert [table.memory(x) for x in (2**29, 2**31)] == ["512 MiB", "2.0 GiB"]
    assert [table.speed(x) for x in (9.876, 1234.5)] == ["9.88", "1,234"]
    assert [table.p_value(x) for x in (0.0001, 0.0412, None)] == ["< 0.001", "0.041", table.ABSENT]


def test_the_table_is_written_next_to_study_json(study: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "study.json").write_text(json.dumps(study), encoding="utf-8")
    path = table.write_table(tmp_path)
    assert path == tmp_path / "study.md"
    assert path.read_text(encoding="utf-8") == table.study_markdown(study)


def test_errors_name_the_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has no study\.json"):
        table.write_table(tmp_path)
    (tmp_path / "study.json").write_text("{")
    with pytest.raises(UserError, match=r"study\.json is not valid JSON"):
        table.write_table(tmp_path)
    (tmp_path / "study.json").write_text('{"format": 1}')
    with pytest.raises(UserError, match="format must be 2, found 1"):
        table.write_table(tmp_path)
