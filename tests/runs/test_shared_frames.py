"""Frames with several label columns: every task gets the same frame, and None and NaN are blank."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest

import polytask
from polytask import Classes, MultiLabel, Score, UserError, YesNo, read_recipe

TINY = {"layers": 1, "hidden": 16, "heads": 2, "ffn": 32, "positions": 128}
SETTINGS: dict[str, Any] = {"train": {"epochs": 1, "steps_per_epoch": 3, "batch_size": 8, "threads": 1}}
ROWS = 60


def frame() -> pd.DataFrame:
    numbers = np.arange(ROWS)
    return pd.DataFrame(
        {
            "message": [f"message number {number} about {'boxes' if number % 3 else 'cards'}" for number in numbers],
            "team": [None if number % 4 == 0 else ("ship" if number % 3 else "pay") for number in numbers],
            "urgent": [np.nan if number % 5 == 0 else float(number % 2) for number in numbers],
            "mood": [float("nan") if number % 2 else 1 + number % 5 for number in numbers],
            "topics": [None if number % 3 else ["a", "b"][: 1 + number % 2] for number in numbers],
            "unused": "x",
        }
    )


def tasks(data: Any, **fields: Any) -> dict[str, Any]:
    fields = {"text": "message", "share_rows": "inbox", **fields}
    return {
        "team": Classes(data, label="team", **fields),
        "urgent": YesNo(data, label="urgent", **fields),
        "mood": Score(data, label="mood", range=(1, 5), **fields),
        "topics": MultiLabel(data, label="topics", **fields),
    }


@pytest.mark.parametrize("convert", [lambda data: data, pl.from_pandas, lambda data: data.to_dict("records")])
def test_the_same_rows_are_held_out_for_all_tasks(tmp_path: Path, convert: Any) -> None:
    fitted = polytask.fit(tasks(convert(frame())), TINY, run=tmp_path / "run", **SETTINGS)
    specs = read_recipe(fitted.folder / "recipe.yaml").tasks
    files = {(spec.train, spec.dev) for spec in specs.values()}
    assert len(files) == 1
    train, dev = ([json.loads(line) for line in Path(file).read_text().splitlines()] for file in files.pop())
    assert len(train) + len(dev) == ROWS
    assert list(train[0]) == ["message", "team", "urgent", "mood", "topics"]
    assert not {row["message"] for row in train} & {row["message"] for row in dev}
    assert fitted.evaluations["dev"].tasks["mood"].examples == sum(row["mood"] is not None for row in dev)
    answers = fitted.model.predict_tasks("about boxes")
    assert answers.keys() == specs.keys()


def test_a_class_of_any_task_that_only_dev_would_have_moves_to_train(tmp_path: Path) -> None:
    data = frame()
    data["team"] = [None if number % 2 else f"team {number // 8}" for number in range(ROWS)]
    fitted = polytask.fit(tasks(data), TINY, run=tmp_path / "run", **SETTINGS)
    assert len(fitted.evaluations["dev"].tasks) == 4


def test_other_dev_shares_are_refused() -> None:
    mixed = {**tasks(frame()), "urgent": tasks(frame(), dev_share=0.3)["urgent"]}
    with pytest.raises(UserError, match=r"fit: tasks.urgent.train: must be that of team"):
        polytask.fit(mixed, TINY)


def test_one_task_with_blank_labels(tmp_path: Path) -> None:
    data = frame()
    with pytest.raises(UserError, match="empty values"):
        polytask.fit({"team": Classes(data, text="message", label="team")}, TINY)
    task = Classes(data, text="message", label="team", blank_labels="skip")
    fitted = polytask.fit({"team": task}, TINY, run=tmp_path / "run", **SETTINGS)
    about = fitted.summary.tasks["team"].data
    assert sum(split["rows"] for split in about.values()) == ROWS - 15
    assert sum(split["blank"] for split in about.values()) == 15
