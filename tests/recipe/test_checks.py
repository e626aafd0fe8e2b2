"""Fields of a recipe that do not fit each other are refused by name."""

from typing import Any

import pytest

from polytask.recipe.checks import REQUIRED, check_blanks
from polytask.recipe.reading import recipe_from
from polytask.types import UserError

TASK = {"kind": "yes_no", "text": "t", "label": "l", "train": "a.csv", "dev": "b.csv"}
PLAIN = {"kind": "text", "text": "t", "train": "a.csv", "dev": "b.csv"}
PAIR = {"kind": "match", "text": ["a", "b"], "train": "t.csv", "dev": "d.csv"}


def recipe(**more: Any) -> dict[str, Any]:
    return {"tasks": {"one": TASK}} | more


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (recipe(name="../../x"), r"name: must be the name of a folder inside runs/, found '\.\./\.\./x'"),
        (recipe(name="/x"), "name: must be the name of a folder inside runs/, found '/x'"),
        (recipe(name=""), "name: must be the name of a folder inside runs/, found ''"),
        (recipe(name="a\nb"), r"name: must be the name of a folder inside runs/, found 'a\\nb'"),
        (
            recipe(regularizers=["smart", {"name": "smart", "weight": 2}]),
            "regularizers: must be different, found smart, smart",
        ),
        (recipe(train={"device": "meta"}), "train.device: must be auto, cpu, cuda or cuda:NUMBER, found 'meta'"),
        (recipe(train={"device": "cuda:x"}), "train.device: must be auto, cpu, cuda or cuda:NUMBER, found 'cuda:x'"),
        (recipe(teachers={"two": "runs/x"}), "teachers: there is no task 'two'"),
        (recipe(teachers={"one": []}), r"teachers.one: must be the folder of a run, or a list of them; found \[\]"),
        (recipe(teachers={"one": ["runs/x", {}]}), r"teachers.one\[1\]: must be a string, found {}"),
        (
            {"tasks": {"one": {**TASK, "unlabelled": "more.csv"}}},
            "tasks.one.unlabelled: needs a teacher, which labels the rows; set `teachers.one` to the folder of a",
        ),
        (
            {"tasks": {"one": TASK, "two": {**TASK, "trained": False, "unlabelled": "more.csv"}}},
            r"tasks.two.unlabelled: the task is not trained \(tasks.two.trained: false\)",
        ),
        (
            {"tasks": {"one": {**PLAIN, "unlabelled": "more.csv"}}},
            "tasks.one.unlabelled: must be left out for kind text, which has no labels",
        ),
        (recipe(train={"teacher_weight": 0.3}), "train.teacher_weight: needs `teacher_annealing: false`"),
        (
            recipe(train={"teacher_weight": 1.1, "teacher_annealing": False}),
            r"train.teacher_weight: must be in \[0, 1\], found 1.1",
        ),
        (recipe(add={"distill": 1}), "add.distill: needs `guarantee: measured`"),
        (
            {"tasks": {"one": {**TASK, "trained": False}}},
            "recipe: tasks: at least one task must be trained, found `trained: false` for all",
        ),
        (
            {"tasks": {"one": TASK, "two": {**TASK, "trained": False}}, "teachers": {"two": "runs/x"}},
            r"teachers.two: the task is not trained \(tasks.two.trained: false\)",
        ),
        ({"tasks": {"one": {**TASK, "trained": "no!"}}}, "tasks.one.trained: must be true or false, found 'no!'"),
        ({"tasks": {"one": {**TASK, "train": None}}}, "tasks.one.train: must have a value, found nothing"),
        ({"tasks": {"one": {**TASK, "rows": 0}}}, r"tasks.one.rows: must be in \[1, 1000000000\], found 0"),
        ({"tasks": {"one": {**TASK, "rows": "ten"}}}, "tasks.one.rows: must be an integer, found 'ten'"),
        ({"tasks": {"one": {**TASK, "rows": {"seed": 1}}}}, "tasks.one.rows: the field sample is missing"),
        ({"tasks": {"one": {**TASK, "rows": {"smple": 1}}}}, r"tasks.one.rows: .*'smple' \(did you mean sample\?\)"),
        (recipe(train={"evaluate_train": -1}), "train.evaluate_train: must be in"),
        (
            {"tasks": {"one": {**TASK, "metrics": [":measure"]}}},
            "tasks.one.metrics: must be functions as module:function, or .*; found ':measure'",
        ),
        (
            {"tasks": {"one": {**TASK, "classes": ["a", "b"]}}},
            "tasks.one.classes: must be left out for kind yes_no, found",
        ),
        (recipe(train={"select": "two"}), "train.select: there is no task 'two'"),
        (recipe(train={"select": "last.f1"}), "train.select: there is no task 'last'"),
        (recipe(train={"select": "last", "patience": 2}), "train.patience: must be left out with `select: last`"),
        (
            {"tasks": {"one": {**TASK, "text": list("abcdefghi")}}},
            "tasks.one.text: must be one column, or a list of up to 8; found 9",
        ),
        (
            {"tasks": {"one": {**TASK, "kind": "score", "standardize": False}}},
            "tasks.one.standardize: false needs `range`, the lowest and the highest score",
        ),
        ({"tasks": {"one": PAIR | {"text": "a"}}}, "tasks.one.text: must be two columns for kind match, found 1"),
        ({"tasks": {"one": PAIR | {"label": "l"}}}, "tasks.one.label: must be left out for kind match"),
        ({"tasks": {"one": PAIR | {"loss": "focal"}}}, "tasks.one.loss: must be left out for kind match"),
        ({"tasks": {"one": PAIR | {"unlabelled": "u.csv"}}}, "tasks.one.unlabelled: must be left out for kind match"),
        ({"tasks": {"one": PAIR | {"abstain_below": 0.5}}}, "tasks.one.abstain_below: is only for kinds classes, "),
        ({"tasks": {"one": PAIR}, "teachers": {"one": "runs/x"}}, "teachers.one: a task of kind match has no labels"),
        (
            {"tasks": {"one": PAIR}, "train": {"batch_size": 1}},
            "train.batch_size: must be at least 2 for task one of kind match",
        ),
        ({"tasks": {"one": {**TASK, "kind": "score", "range": [5, 0]}}}, "the first value must be lower"),
        ({"tasks": {"one": {**TASK, "kind": "classes", "classes": ["a", "a"]}}}, "two or more different names"),
        ({"tasks": {"one": {**TASK, "label": None}}}, "tasks.one.label: must have a value, found nothing"),
        (
            {"tasks": {"one": {**TASK, "kind": "text"}}},
            "tasks.one.label: must be left out for kind text, which has no labels; found 'l'",
        ),
        (
            {"tasks": {"one": {**PLAIN, "range": [0, 5]}}},
            "tasks.one.range: must be left out for kind text",
        ),
        (
            {"tasks": {"one": {**PLAIN, "loss": "focal"}}},
            "tasks.one.loss: must be left out for kind text",
        ),
        (
            {"tasks": {"one": {**PLAIN, "classes": ["a", "b"]}}},
            "classes: must be left out for kind text, found .*; only",
        ),
        ({"tasks": {"one": {**PAIR, "classes": ["a", "b"]}}}, "tasks.one.classes: must be left out for kind match"),
        ({"tasks": {"one": {**TASK, "kind": "classes", "classes": ["a", "a"]}}}, "must be two or more different names"),
        (
            {"tasks": {"one": {**TASK, "kind": "multilabel", "label": ["a", "b"], "separator": "|"}}},
            r"tasks.one.separator: must be left out: columns of 0 and 1 have no separator; found '\|'",
        ),
        (
            {"tasks": {"one": {**PLAIN, "text": ["a", "b"]}}},
            "tasks.one.text: must be one column for kind",
        ),
        ({"tasks": {"one": PLAIN}, "teachers": {"one": "runs/x"}}, "teachers.one: a task of kind text has no labels"),
    ],
)
def test_fields_that_do_not_fit_are_refused(content: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        recipe_from(content)


def test_all_blank_fields_are_listed_at_once() -> None:
    blank = dict.fromkeys(REQUIRED)
    with pytest.raises(UserError) as caught:
        check_blanks({"one": blank, "two": {**TASK, "dev": None}, "words": {**PLAIN, "label": None}}, "file.yaml")
    lines = str(caught.value).splitlines()
    assert [line.split(": ")[1] for line in lines] == [*(f"tasks.one.{field}" for field in REQUIRED), "tasks.two.dev"]
    check_blanks({"one": TASK, "words": {**PLAIN, "label": None}}, "file.yaml")  # plain text has no labels
