"""A run's recipe of an earlier version keeps the values that the run was trained with."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from polytask.recipe.earlier import TASK, TRAIN, WRITTEN_WITH, as_written, is_of_run, with_earlier_values
from polytask.recipe.reading import read_recipe, recipe_from
from polytask.recipe.records import recipe_to_mapping

SPEC = {"kind": "score", "text": "t", "label": "l", "range": [0, 5], "train": "a.csv", "dev": "b.csv"}


def test_missing_fields_have_their_earlier_values_and_given_ones_stay() -> None:
    content = {"train": {"epochs": 2, "calibrate": True}, "tasks": {"a": {"kind": "score"}, "b": None}}
    assert with_earlier_values(content) == {
        "train": {**TRAIN, "epochs": 2, "calibrate": True},
        "tasks": {"a": {**TASK, "kind": "score"}, "b": None},
    }
    assert content["train"] == {"epochs": 2, "calibrate": True}


@pytest.mark.parametrize("content", [None, [], "text", {}, {"train": None, "tasks": []}])
def test_content_of_another_form_is_left_to_the_checks(content: Any) -> None:
    assert with_earlier_values(content) == content
    recipe = recipe_from({"tasks": {"one": SPEC}})
    assert as_written(recipe, content) == recipe


def test_a_whole_recipe_of_this_version_is_unchanged() -> None:
    recipe = recipe_from({"tasks": {"one": SPEC}})
    content = recipe_to_mapping(recipe)
    assert with_earlier_values(content) == content
    assert as_written(recipe, content) == recipe


def test_the_users_recipe_gets_the_values_of_the_run() -> None:
    recipe = recipe_from({"tasks": {"one": SPEC, "new": SPEC}})
    written = as_written(recipe, {"train": {"calibrate": True}, "tasks": {"one": {}, "gone": {}}})
    assert (written.train.loss_scale, written.train.calibrate) == ("none", recipe.train.calibrate)
    assert (written.tasks["one"].standardize, written.tasks["new"].standardize) == (False, True)


def test_only_recipes_in_the_folder_of_a_run_are_of_an_earlier_version(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump({"tasks": {"one": SPEC}, "train": {}}))
    assert not is_of_run(path)
    assert read_recipe(path).train.loss_scale != "none"
    (tmp_path / WRITTEN_WITH).write_text("{}")
    assert is_of_run(path)
    assert read_recipe(path).train.loss_scale == "none"
