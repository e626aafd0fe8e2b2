"""The recipe as a record: names of tasks, its mapping, and its fields by dotted name."""

import pytest

from polytask.recipe.reading import recipe_from
from polytask.recipe.records import check_task_name, flat_fields, recipe_to_mapping, strings_in, teacher_runs
from polytask.types import UserError

TASK = {"kind": "yes_no", "text": "t", "label": "l", "train": "a.csv", "dev": "b.csv"}


@pytest.mark.parametrize("name", ["a", "A-1_b", "0", "x" * 64, "Mean"])
def test_names_of_tasks(name: str) -> None:
    check_task_name(name, "here")


@pytest.mark.parametrize("name", ["", "-a", "a b", "a.b", "é", "x" * 65, "mean", "last", "a/b", "a\n"])
def test_names_that_no_task_may_have(name: str) -> None:
    with pytest.raises(UserError, match="here: a task's name must be 1 to 64 letters, digits, - and _"):
        check_task_name(name, "here")


def test_the_mapping_of_a_recipe_is_the_same_recipe() -> None:
    choices = {"adapter": {"name": "houlsby", "size": 8}, "teachers": {"one": ["runs/a", "runs/b"]}}
    recipe = recipe_from({"tasks": {"one": TASK, "two": TASK}, **choices})
    content = recipe_to_mapping(recipe)
    assert content["adapter"] == {"name": "houlsby", "size": 8}
    assert "name" not in content["tasks"]["one"]
    assert recipe_from(content) == recipe


def test_fields_by_dotted_name() -> None:
    recipe = recipe_from({"tasks": {"one": TASK}, "adapter": {"name": "houlsby", "size": 8}, "train": {"epochs": 7}})
    found = flat_fields(recipe)
    assert (found["adapter"], found["adapter.size"]) == ("houlsby", 8)
    assert (found["tasks.one.kind"], found["train.epochs"]) == ("yes_no", 7)


def test_the_fields_of_teachers_are_numbered_where_there_are_several() -> None:
    teachers = {"one": "runs/a", "two": ["runs/b", "runs/c"]}
    recipe = recipe_from({"tasks": {"one": TASK, "two": TASK}, "teachers": teachers})
    fields = [(field, task) for field, task, _ in teacher_runs(recipe)]
    assert fields == [("teachers.one", "one"), ("teachers.two[0]", "two"), ("teachers.two[1]", "two")]


def test_all_strings_in_a_mapping() -> None:
    assert list(strings_in({"a": "x", "b": ["y", {"c": ("z", 1, None)}]})) == ["x", "y", "z"]
