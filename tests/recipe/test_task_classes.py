"""Tasks as Python objects: the fields of a recipe's tasks, and the mapping that a recipe file would have."""

from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from polytask.recipe.reading import recipe_from
from polytask.recipe.task_classes import (
    DEV_FIELDS,
    Choice,
    Classes,
    Match,
    MultiLabel,
    Score,
    TaskFields,
    Tokens,
    YesNo,
    is_in_memory,
    needs_files,
)
from polytask.settings import RowSample, TaskSpec
from polytask.types import KINDS_WITHOUT_LABEL, LabelKind

TASKS: list[type[TaskFields]] = [Classes, YesNo, Score, MultiLabel, Tokens, Choice, Match]


def test_together_they_have_all_fields_of_a_recipes_tasks() -> None:
    known = {f.name for task in TASKS for f in fields(task)}
    assert known - {*DEV_FIELDS} == {f.name for f in fields(TaskSpec)} - {"name", "kind"}


def test_every_kind_that_can_be_predicted_has_a_class() -> None:
    assert {task.kind for task in TASKS} == {*get_args(LabelKind)} - {"text"}


@pytest.mark.parametrize("task", TASKS)
def test_defaults_are_left_out_and_are_those_of_a_recipe(task: type[TaskFields]) -> None:
    columns: dict[str, Any] = {"text": ["a", "b"]} if task is Match else {"text": "t", "label": "l"}
    columns |= {"options": "o"} if task is Choice else {}
    content = task(train="train.csv", dev="dev.csv", **columns).to_mapping()
    assert content == {"kind": task.kind, "train": "train.csv", "dev": "dev.csv", **columns}
    spec = recipe_from({"tasks": {"one": content}}).tasks["one"]
    for field in fields(task):
        if field.name not in (*content, *DEV_FIELDS):
            assert getattr(spec, field.name) == field.default, field.name
    assert (spec.label is None) == (task.kind in KINDS_WITHOUT_LABEL)


def test_values_become_those_of_a_recipe_file() -> None:
    rows = RowSample(10, 3)
    task = Classes(Path("a.csv"), ("t",), "l", rows=rows, classes=np.array(["x", "y"]), metrics=("m:f",))  # type: ignore[arg-type]
    assert task.to_mapping() == {
        "kind": "classes",
        "train": "a.csv",
        "text": ["t"],
        "label": "l",
        "rows": {"sample": 10, "seed": 3},
        "metrics": ["m:f"],
        "classes": ["x", "y"],
    }
    assert Score("a.csv", "t", "l", range=(0, 5)).to_mapping()["range"] == [0, 5]


@pytest.mark.parametrize(
    ("data", "in_memory"), [(None, False), ("a.csv", False), (Path("a.csv"), False), (3, False), ([], True), ({}, True)]
)
def test_data_in_memory(data: Any, in_memory: bool) -> None:
    assert is_in_memory(data) == in_memory
    assert needs_files({"train": data}) == (in_memory or isinstance(data, Path))
    assert needs_files(Classes(data, "t", "l"))
    assert not needs_files(data if data != {} else None)
