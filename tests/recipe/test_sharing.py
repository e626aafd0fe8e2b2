"""Tasks that share rows must name the same ones, and need labels of texts."""

from typing import Any

import pytest

from polytask.recipe.reading import recipe_from
from polytask.recipe.sharing import SAME, groups_of
from polytask.settings import TaskSpec
from polytask.types import UserError

TASK = {"text": "message", "label": "team", "share_rows": "inbox", "train": "train.csv", "dev": "dev.csv"}


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"share_rows": "mood"}, "urgent.share_rows: the name of the group must not be that of a task, found 'mood'"),
        (
            {"share_rows": "a b"},
            "urgent.share_rows: the name of the group must be letters, digits",
        ),
        ({"dev": "other.csv"}, "urgent.dev: must be that of team, which has the same `share_rows: inbox`; found other"),
        ({"text": "urgent"}, "urgent.text: must be that of team"),
        ({"unlabelled": "more.csv"}, "urgent.unlabelled: needs a teacher"),
        ({"kind": "text", "label": None}, "urgent.share_rows: must be left out for kind text"),
        ({"kind": "tokens"}, "urgent.share_rows: must be left out for kind tokens"),
        (
            {"kind": "text", "label": None, "share_rows": None, "blank_labels": "skip"},
            "urgent.blank_labels: must be left out for kind text",
        ),
        ({"blank_labels": "drop"}, "urgent.blank_labels: must be one of stop, skip"),
    ],
)
def test_a_task_that_cannot_share_the_rows(changed: Any, problem: str) -> None:
    tasks = {
        "team": {"kind": "classes", **TASK},
        "urgent": {"kind": "yes_no", **TASK, **changed},
        "mood": {"kind": "classes", **TASK},
    }
    with pytest.raises(UserError, match=problem):
        recipe_from({"tasks": tasks}, where="test")


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"train": {"stop": "per_task", "patience": 1}}, "team.share_rows: cannot be combined with train.stop"),
        ({"teachers": {"team": "runs/teacher"}}, "team.share_rows: cannot be combined with teachers"),
    ],
)
def test_what_cannot_be_combined_with_shared_rows(fields: Any, problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        recipe_from({"tasks": {"team": {"kind": "classes", **TASK}, "mood": {"kind": "classes", **TASK}}, **fields})


def test_groups_have_their_tasks_in_order() -> None:
    tasks = {
        "a": {"kind": "classes", **TASK},
        "b": {"kind": "classes", **TASK, "share_rows": "other"},
        "c": {"kind": "score", **TASK},
        "d": {"kind": "classes", **TASK, "share_rows": None},
    }
    groups = groups_of(recipe_from({"tasks": tasks}).tasks)
    assert {name: [spec.name for spec in specs] for name, specs in groups.items()} == {
        "inbox": ["a", "c"],
        "other": ["b"],
    }
    assert {*SAME} <= {*TaskSpec.__dataclass_fields__}
