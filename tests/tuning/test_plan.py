"""Shorter runs, the division of the dev rows, and the budget, as numbers."""

import csv
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from polytask.recipe.reading import read_recipe, recipe_from, with_value
from polytask.recipe.records import Recipe, recipe_to_mapping
from polytask.runs.prepare import prepare
from polytask.tuning.budget import Budget
from polytask.tuning.plan import make_plan, shortened
from polytask.tuning.rows import divide_rows, read_hold_back
from polytask.tuning.tune import read_budget
from polytask.types import UserError

from .conftest import QUICKSTART


@pytest.mark.parametrize(
    ("epochs", "ninths", "expected"),
    [(4, 1, (1, 31)), (4, 3, (1, 91)), (4, 9, (4, None)), (9, 1, (1, 68)), (9, 3, (3, 68)), (1, 1, (1, 8))],
)
def test_a_shorter_run_has_a_share_of_the_steps(epochs: int, ninths: int, expected: tuple[int, int | None]) -> None:
    recipe = read_recipe(QUICKSTART, [f"train.epochs={epochs}"])
    short = shortened(recipe, ninths, 68).train
    assert (short.epochs, short.steps_per_epoch) == expected


def test_a_warm_up_in_steps_keeps_its_share() -> None:
    recipe = read_recipe(QUICKSTART, ["train.epochs=1", "train.warmup=20"])
    assert shortened(recipe, 1, 100).train.warmup == 0.2
    assert shortened(recipe, 9, 100).train.warmup == 20


def rows_of(file: str) -> list[dict[str, str]]:
    with open(file, newline="", encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def test_the_dev_rows_are_divided_and_no_text_is_on_both_sides(tmp_path: Path) -> None:
    recipe = read_recipe(QUICKSTART)
    search, final = divide_rows(recipe, 0.5, tmp_path)
    assert search == {**final, **{f"tasks.{task}.test": None for task in recipe.tasks}}
    for task, count in (("opinion", 150), ("question", 120), ("similarity", 90)):
        dev, held = rows_of(final[f"tasks.{task}.dev"]), rows_of(final[f"tasks.{task}.test"])
        assert len(dev) + len(held) == count
        assert abs(len(held) - count / 2) <= 3
        columns = recipe.tasks[task].text
        texts = [{row[column].casefold() for row in rows for column in columns} for rows in (dev, held)]
        assert not texts[0] & texts[1]
    assert divide_rows(recipe, 0.5, tmp_path) == (search, final)


def with_fields(recipe: Recipe, fields: Mapping[str, Any]) -> Recipe:
    content = recipe_to_mapping(recipe)
    for field, value in fields.items():
        content = with_value(content, field.split("."), value)
    return recipe_from(content)


def test_a_recipe_with_a_dialect_of_its_own_reads_the_divided_rows(tmp_path: Path, tiny_settings: list[str]) -> None:
    rows = [f"{text};{label}" for i in range(30) for text, label in ((f"good {i}", "good"), (f"bad, {i}", "bad"))]
    for name in ("train", "dev"):
        (tmp_path / f"{name}.txt").write_text("\n".join(["text;mood", *(f"{name} {row}" for row in rows)]))
    task = {"kind": "classes", "text": "text", "label": "mood", "train": "train.txt", "dev": "dev.txt"}
    (tmp_path / "more.txt").write_text("id;text\n1;one more\n2;and, another\n")
    task = {**task, "delimiter": "semicolon", "format": "csv", "unlabelled": "more.txt"}
    recipe = recipe_from({"tasks": {"mood": task}, "teachers": {"mood": "unused"}}, tiny_settings, folder=tmp_path)
    _, final = divide_rows(recipe, 0.5, tmp_path / "data")
    splits = prepare(replace(with_fields(recipe, final), teachers={})).tasks["mood"].splits
    assert {name: len(split) for name, split in splits.items()} == {"train": 60, "dev": 30, "test": 30, "unlabelled": 2}


def test_only_trained_tasks_and_the_selected_one_are_tuned(tmp_path: Path, tiny_settings: list[str]) -> None:
    cases = (
        ([], ["opinion", "question", "similarity"], "mean"),
        (["tasks.question.trained=false"], ["opinion", "similarity"], "mean"),
        (["tasks.question.trained=false", "tasks.similarity.trained=false"], ["opinion"], "opinion"),
        (["tasks.question.trained=false", "train.select=question"], ["opinion", "question", "similarity"], "question"),
    )
    values = {"opinion": 0.5, "question": 0.9, "similarity": 0.7}
    scores = {task: {"primary": "m", "metrics": {"m": {"value": value}}} for task, value in values.items()}
    summary = {"tasks": {task: {"kind": "score"} for task in values}, "evaluations": {"dev": scores}}
    for number, (more, tasks, view) in enumerate(cases):
        recipe = read_recipe(QUICKSTART, [*tiny_settings, *more])
        plan = make_plan(recipe_to_mapping(recipe), recipe, (), 0.0, tmp_path / str(number))
        assert (plan.tasks, plan.view) == (tasks, view)
        mean = sum(values[task] for task in tasks) / len(tasks)
        assert plan.score(summary) == pytest.approx(values.get(view, mean))
        assert not plan.lower_is_better


def test_a_score_is_minus_a_metric_that_is_better_when_lower(tmp_path: Path, tiny_settings: list[str]) -> None:
    """And a task that is not tuned may have any metric."""
    settings = ["tasks.similarity.metric=mae", "train.select=similarity", "tasks.question.trained=false"]
    recipe = read_recipe(QUICKSTART, [*tiny_settings, *settings, "tasks.question.metric=auc"])
    plan = make_plan(recipe_to_mapping(recipe), recipe, (), 0.0, tmp_path / "out")
    score = {"primary": "mae", "metrics": {"mae": {"value": 0.7}}, "greater_is_better": False}
    summary = {"tasks": {"similarity": {"kind": "score"}}, "evaluations": {"dev": {"similarity": score}}}
    assert plan.lower_is_better
    assert plan.score(summary) == -0.7


def test_a_folder_in_which_no_run_has_started_is_used_for_another_recipe(
    tmp_path: Path, tiny_settings: list[str]
) -> None:
    """Errors advise another recipe or another --hold-back: the same folder must take it."""
    folder, content = tmp_path / "out", dict[str, Any]()
    long, short = (read_recipe(QUICKSTART, [*tiny_settings, f"train.epochs={epochs}"]) for epochs in (2, 1))
    with pytest.raises(UserError, match="have no test file"):
        make_plan(content, long, (), "test", folder)
    make_plan(content, long, (), 0.0, folder)
    (folder / "trials.sqlite3").write_text("times of steps")
    make_plan(content, long, (), 0.0, folder)
    assert (folder / "trials.sqlite3").exists()
    make_plan(content, short, (), 0.0, folder)
    assert not (folder / "trials.sqlite3").exists()
    (folder / "cells").mkdir()
    with pytest.raises(UserError, match="belongs to a tuning with another recipe"):
        make_plan(content, long, (), 0.0, folder)


def test_a_recipe_whose_trained_tasks_are_plain_text(tmp_path: Path, tiny_settings: list[str]) -> None:
    text = {"kind": "text", "text": "text", "train": "sample:opinions-train", "dev": "sample:opinions-dev"}
    content = with_value(recipe_to_mapping(read_recipe(QUICKSTART, tiny_settings)), ["tasks", "words"], text)
    for task in ("opinion", "question", "similarity"):
        content["tasks"][task]["trained"] = False
    with pytest.raises(UserError, match="all trained tasks are plain text"):
        make_plan(content, recipe_from(content), (), 0.5, tmp_path / "out")


def test_a_task_without_a_training_file_is_divided(tmp_path: Path, tiny_settings: list[str]) -> None:
    rows = [f"{text};{label}" for i in range(30) for text, label in ((f"good {i}", "good"), (f"bad, {i}", "bad"))]
    (tmp_path / "dev.txt").write_text("\n".join(["text;mood", *rows]))
    task = {"kind": "classes", "text": "text", "label": "mood", "dev": "dev.txt", "trained": False}
    content = recipe_to_mapping(read_recipe(QUICKSTART, tiny_settings))
    content["tasks"]["mood"] = {**task, "delimiter": "semicolon", "format": "csv"}
    recipe = recipe_from(content, folder=tmp_path)
    _, final = divide_rows(recipe, 0.5, tmp_path / "data")
    assert "tasks.mood.train" not in final
    divided = recipe_to_mapping(recipe)
    for field, value in final.items():
        divided = with_value(divided, field.split("."), value)
    splits = prepare(recipe_from(divided)).tasks["mood"].splits
    assert {name: len(split) for name, split in splits.items()} == {"dev": 30, "test": 30}


@pytest.mark.parametrize("name", ["partly-labelled", "entities", "choice"])
def test_rows_of_other_kinds_are_divided(name: str, tmp_path: Path, tiny_settings: list[str]) -> None:
    recipe = read_recipe(Path(__file__).parent.parent.parent / "recipes" / f"{name}.yaml", tiny_settings)
    _, final = divide_rows(recipe, 0.5, tmp_path / "data")
    divided = prepare(with_fields(recipe, final))
    for task, ready in prepare(recipe).tasks.items():
        halves = divided.tasks[task].splits
        assert len(halves["dev"]) + len(halves["test"]) == len(ready.splits["dev"])
        assert min(len(halves["dev"]), len(halves["test"])) > 0.3 * len(ready.splits["dev"])


def test_the_test_files_can_be_the_judge() -> None:
    recipe = read_recipe(QUICKSTART)
    with pytest.raises(UserError, match="these tasks have no test file: opinion, question, similarity"):
        divide_rows(recipe, "test", Path("nowhere"))
    tasks = {name: replace(task, test=f"sample:{name}") for name, task in recipe.tasks.items()}
    search, final = divide_rows(replace(recipe, tasks=tasks), "test", Path("nowhere"))
    assert set(search.values()) == {None}
    assert final["tasks.opinion.test"] == "sample:opinion"


@pytest.mark.parametrize("wrong", ["1.5", "-0.1", "half"])
def test_hold_back_is_a_share(wrong: str) -> None:
    assert (read_hold_back("0.2"), read_hold_back(0.5), read_hold_back("test")) == (0.2, 0.5, "test")
    with pytest.raises(UserError, match=r"--hold-back: must be a share of the dev rows in \[0, 0.9\], or test"):
        read_hold_back(wrong)


@pytest.mark.parametrize("wrong", ["", "soon", "0m", "-5m", "20 days", "1.2.3m"])
def test_budgets(wrong: str) -> None:
    assert [read_budget(text) for text in ("90s", "20m", "1.5h", "20", 20, "3 min")] == [
        90,
        1200,
        5400,
        1200,
        1200,
        180,
    ]
    with pytest.raises(UserError, match="--budget: must be a time such as 90s, 20m or 2h"):
        read_budget(wrong)


def budget(total: float, workers: int = 1, used: float = 0.0) -> Budget:
    """A recipe of nine seconds."""
    return Budget(total, workers, 3, used, (9.0, 0.0))


def test_the_largest_bracket_that_leaves_time_for_the_final() -> None:
    assert budget(1000).reserve() == pytest.approx(5 * 4 * 9, abs=4 * 9 * 3)  # at most what the final can use
    assert budget(60).reserve() == 36  # two seeds of two runs
    assert [budget(total).bracket() for total in (50, 52, 58, 64, 1000)] == [None, 3, 6, 9, 9]
    assert budget(1000, used=990).bracket() is None
    assert budget(34, workers=3).bracket() == 9


def test_a_search_that_passes_the_check_has_trials() -> None:
    """Half of the time is kept for the final, but not if no trial would be left."""
    short = Budget(1000, 1, 3, 0.0, (9.0, 100.0))  # tiny runs: most of their time is that of starting
    short.check()
    assert (short.bracket(), short.bracket(first=True)) == (None, 3)
    used = budget(52)
    used.started -= 2  # the calibration took two seconds
    with pytest.raises(UserError, match=r"52.0 s is too short.*53.0 s"):
        used.check()


def test_estimates_become_measurements() -> None:
    one = budget(100)
    assert one.seconds(3) == 3
    for took in (5.0, 7.0, 60.0):
        one.record(3, took)
    assert one.seconds(3) == 7
    assert one.seconds(9) == 9
    for took in (5.0, 5.0, 30.0, 31.0, 32.0):  # other programs use the machine now
        one.record(3, took)
    assert one.seconds(3) == 30


def test_fewer_finalists_if_the_time_is_short() -> None:
    assert [budget(total).finalists() for total in (20, 55, 82, 110, 500)] == [1, 1, 2, 3, 3]


def test_a_budget_that_is_too_short_says_how_long_a_run_takes() -> None:
    budget(52).check()
    with pytest.raises(UserError, match=r"20.0 s is too short: one run of this recipe takes about 9.0 s here.*51.0 s"):
        budget(20).check()
