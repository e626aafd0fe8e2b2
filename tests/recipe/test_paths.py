"""The paths in a recipe become absolute, from the recipe's own folder."""

from pathlib import Path

import pytest

from polytask.recipe.paths import locate_function
from polytask.recipe.reading import read_recipe, recipe_from
from polytask.recipe.records import recipe_to_mapping
from polytask.types import UserError

TASK = {"kind": "yes_no", "text": "t", "label": "l", "train": "a.csv", "dev": "b.csv"}


def test_files_are_made_absolute_from_the_recipe_or_the_data_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "r.yaml"
    path.write_text("tasks: {one: {kind: yes_no, text: t, label: l, train: in/a.csv, dev: 'sample:b.csv'}}")
    assert read_recipe(path).tasks["one"].train == str(tmp_path / "in" / "a.csv")
    assert read_recipe(path).tasks["one"].dev == "sample:b.csv"
    monkeypatch.setenv("SOME_DATA", "/data")
    assert read_recipe(path, ["data=${SOME_DATA}"]).tasks["one"].train == "/data/in/a.csv"
    monkeypatch.delenv("SOME_DATA")
    with pytest.raises(UserError, match=r"data: the environment variable SOME_DATA is not set; set it"):
        read_recipe(path, ["data=${SOME_DATA}"])


def test_a_home_folder_may_be_written_with_a_tilde(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    content = {"tasks": {"one": {**TASK, "train": "~/a.csv", "test": "~/c.csv"}}, "teachers": {"one": "~/runs/x"}}
    recipe = recipe_from(content, folder=tmp_path)
    assert (recipe.tasks["one"].train, recipe.tasks["one"].test) == ("/home/me/a.csv", "/home/me/c.csv")
    assert recipe.teachers == {"one": ("/home/me/runs/x",)}


def test_several_teachers_are_relative_to_the_recipes_folder(tmp_path: Path) -> None:
    content = {"tasks": {"one": TASK}}
    recipe = recipe_from(content, ["teachers.one=[runs/x, ../y]"], folder=tmp_path / "recipes")
    assert recipe.teachers == {"one": (str(tmp_path / "recipes/runs/x"), str(tmp_path / "y"))}
    assert recipe_from(recipe_to_mapping(recipe)).teachers == recipe.teachers
    with pytest.raises(UserError, match=r"teachers.one\[1\]: the environment variable NO_RUNS is not set"):
        recipe_from(content, ["teachers.one=[runs/x, '${NO_RUNS}/y']"], folder=tmp_path)


def test_an_encoder_is_a_folder_only_if_it_exists(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "minilm").mkdir()
    encoders = {
        name: recipe_from({"tasks": {"one": TASK}, "encoder": name}, folder=tmp_path).encoder
        for name in ("mine", "minilm", "bert-base-uncased")
    }
    assert encoders == {"mine": str(tmp_path / "mine"), "minilm": "minilm", "bert-base-uncased": "bert-base-uncased"}


def test_a_function_is_looked_up_in_the_recipes_folder_then_in_the_current_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside, current = tmp_path / "beside", tmp_path / "current"
    for folder, names in ((beside, ["mine", "json"]), (current, ["mine", "other", "json"])):
        folder.mkdir()
        for name in names:
            (folder / f"{name}.py").touch()
    monkeypatch.chdir(current)
    assert locate_function("mine:f", beside) == f"{beside}/mine.py:f"
    assert locate_function("other:f", beside) == f"{current}/other.py:f"
    assert locate_function("other.py:f", beside) == f"{current}/other.py:f"
    (beside / "json.py").unlink()
    assert locate_function("json:f", beside) == "json:f"  # installed: not taken from the current folder
    assert locate_function("nowhere:f", beside) == "nowhere:f"
    assert locate_function("f", beside) == "f"
