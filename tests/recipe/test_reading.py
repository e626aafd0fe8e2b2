"""Recipes: what is read, what is refused and in which words, and that the resolved copy means the same."""

from pathlib import Path
from typing import Any

import pytest

from polytask.recipe.reading import read_recipe, recipe_from, write_recipe
from polytask.recipe.records import recipe_to_mapping
from polytask.settings import MethodChoice, RowSample
from polytask.types import UserError

TASK = {"kind": "yes_no", "text": "t", "label": "l", "train": "a.csv", "dev": "b.csv"}
PLAIN = {"kind": "text", "text": "t", "train": "a.csv", "dev": "b.csv"}


def recipe(**more: Any) -> dict[str, Any]:
    return {"tasks": {"one": TASK}} | more


def test_defaults_and_short_forms() -> None:
    made = recipe_from(recipe(sampler="round_robin", optimizer={"name": "adamw", "lr": "1e-5"}))
    assert made.tasks["one"].text == ("t",)
    assert made.sampler == MethodChoice("round_robin")
    assert made.optimizer == MethodChoice("adamw", {"lr": "1e-5"})
    assert made.train.epochs == 3


def test_options_without_a_name_are_the_defaults() -> None:
    assert recipe_from(recipe(optimizer={"lr": "1e-5"})).optimizer == MethodChoice("adamw", {"lr": "1e-5"})
    assert recipe_from(recipe(), ["optimizer.lr=0.1"]).optimizer == MethodChoice("adamw", {"lr": 0.1})


def test_settings_go_over_the_file() -> None:
    made = recipe_from(
        recipe(optimizer="adamw"), ["train.epochs=7", "optimizer.lr=3e-5", "tasks.one.text=[a, b]", "seed=4"]
    )
    assert made.train.epochs == 7
    assert made.optimizer == MethodChoice("adamw", {"lr": "3e-5"})
    assert made.tasks["one"].is_pair
    assert made.seed == 4


def test_resolved_copy_means_the_same(tmp_path: Path) -> None:
    made = recipe_from(
        recipe(
            regularizers=[{"name": "x", "strength": 0.1}],
            encoder={"layers": 2, "hidden": 32},
            train={"warmup": 0.2, "clip": None},
            tasks={"one": TASK, "words": PLAIN},
        ),
        ["tasks.one.head={name: bi, form: concat}", "tasks.one.classes=null"],
    )
    write_recipe(made, tmp_path / "recipe.yaml")
    assert read_recipe(tmp_path / "recipe.yaml") == made
    assert recipe_to_mapping(made)["train"]["epochs"] == 3  # defaults are written out


def test_rows_and_tasks_that_are_not_trained(tmp_path: Path) -> None:
    scored = {name: value for name, value in TASK.items() if name != "train"} | {"trained": False}
    tasks = {"first": {**TASK, "rows": 10}, "some": {**TASK, "rows": {"sample": 5}}, "scored": scored}
    made = recipe_from({"tasks": tasks})
    assert [task.rows for task in made.tasks.values()] == [10, RowSample(5, seed=0), None]
    assert [task.train is None for task in made.tasks.values()] == [False, False, True]
    write_recipe(made, tmp_path / "recipe.yaml")
    assert read_recipe(tmp_path / "recipe.yaml") == made


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([1, 2], "a recipe must be a mapping"),
        ({}, "tasks: must have at least one task"),
        ({"tasks": {}}, "tasks: must have at least one task"),
        (recipe(epocs=3), "there is no field 'epocs'"),
        (
            recipe(train={"epocs": 3}),
            r"train: there is no field 'epocs' \(did you mean epochs\?\)\. Valid: accumulate, ",
        ),
        (recipe(train={"epochs": "many"}), "train.epochs: must be an integer, found 'many'"),
        (recipe(train={"epochs": 0}), r"train.epochs: must be in \[1, 1000000000\], found 0"),
        (recipe(train={"clip": -1}), "train.clip: must be above 0, found -1"),
        (recipe(train={"precision": "fp8"}), "train.precision: must be one of auto, float32, bf16; found 'fp8'"),
        (recipe(train={"head_lr": "nan"}), "train.head_lr: must be a number"),
        (recipe(dropout=1.0), r"dropout: must be in \[0, 1\), found 1.0"),
        (recipe(max_length=2), r"max_length: must be in \[4, 1000000\], found 2"),
        (recipe(regularizers=[{"lr": 1}]), r"regularizers\[0\]: must be a name, or"),
        ({"tasks": {"../x": TASK}}, r"tasks.\.\./x: a task's name must be"),
        ({"tasks": {"mean": TASK}}, "tasks.mean: a task's name must be .* not mean"),
        ({"tasks": {"last": TASK}}, "tasks.last: a task's name must be .* not mean or last"),
        ({"tasks": {"one": "file.csv"}}, r"tasks.one: must be a mapping \(FIELD: VALUE\), found 'file.csv'"),
        (
            {"tasks": {"one": {**TASK, "kind": "regression"}}},
            "tasks.one.kind: there is no kind 'regression'. Valid: choice, classes, match, multilabel, score, ",
        ),
        ({"tasks": {"one": {k: v for k, v in TASK.items() if k != "dev"}}}, "tasks.one: the field dev is missing"),
        ({"tasks": {"one": {**TASK, "kind": "score", "range": [5]}}}, "tasks.one.range: must have 2 values, found 1"),
        ({"tasks": {"one": {**TASK, "weight": 0}}}, "tasks.one.weight: must be above 0, found 0"),
        ({"tasks": {"one": {k: v for k, v in TASK.items() if k != "label"}}}, "tasks.one: the field label is missing"),
    ],
)
def test_invalid_fields_are_refused(content: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        recipe_from(content)


def test_a_file_that_is_not_yaml_is_named(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("tasks: {a: 1\n")
    with pytest.raises(UserError, match=r"bad\.yaml: not valid YAML"):
        read_recipe(tmp_path / "bad.yaml")


def test_missing_and_undecodable_files(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none\.yaml: the recipe cannot be read: No such file"):
        read_recipe(tmp_path / "none.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"name: caf\xe9")
    with pytest.raises(UserError, match=r"latin\.yaml: the recipe is not UTF-8 text .byte 9."):
        read_recipe(tmp_path / "latin.yaml")


@pytest.mark.parametrize("setting", ["train.epochs", "=3", "train.epochs=[1"])
def test_bad_settings(setting: str) -> None:
    with pytest.raises(UserError, match="--set"):
        recipe_from(recipe(), [setting])


# --- a recipe put over another ----------------------------------------------------------------------------------------
BASE = """
encoder: minilm
sampler: {name: power, alpha: 0.5}
tasks:
  one: {kind: yes_no, text: t, label: l, train: in/a.csv, dev: in/b.csv}
  two: {kind: score, range: [0, 5], text: [t, u], label: l, train: in/c.csv, dev: in/d.csv}
train: {epochs: 7, batch_size: 8}
"""


def written(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        path = folder / f"{name.replace('__', '/')}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def test_a_recipe_is_put_over_its_base(tmp_path: Path) -> None:
    own = """
    base: ../base.yaml
    name: mine
    sampler: round_robin
    tasks: {one: {weight: 2}}
    train: {epochs: 1}
    """
    made = read_recipe(written(tmp_path, base=BASE, papers__mine=own) / "papers" / "mine.yaml", ["train.clip=2"])
    assert (made.name, made.sampler) == ("mine", MethodChoice("round_robin"))
    assert (made.train.epochs, made.train.batch_size, made.train.clip) == (1, 8, 2.0)
    assert (made.tasks["one"].weight, made.tasks["one"].kind) == (2.0, "yes_no")
    assert made.tasks["two"].train == str(tmp_path / "in" / "c.csv")


def test_a_task_of_the_base_can_be_left_out_and_bases_can_have_bases(tmp_path: Path) -> None:
    second = "{base: base.yaml, tasks: {two: null}}"
    third = "{base: ../second.yaml, adapter: pal}"
    folder = written(tmp_path, base=BASE, second=second, deep__third=third)
    made = read_recipe(folder / "deep" / "third.yaml")
    assert list(made.tasks) == ["one"]
    assert made.adapter == MethodChoice("pal")
    assert made.tasks["one"].dev == str(tmp_path / "in" / "b.csv")


def test_a_base_reaches_its_data_encoder_and_teachers_from_its_own_folder(tmp_path: Path) -> None:
    (tmp_path / "encoders" / "small").mkdir(parents=True)
    more = "data: files\nencoder: encoders/small\nteachers: {one: runs/one, two: [runs/two, ~/runs/three]}\n"
    folder = written(tmp_path, base=more + BASE.replace("encoder: minilm", ""), deep__mine="{base: ../base.yaml}")
    made = read_recipe(folder / "deep" / "mine.yaml")
    assert made.tasks["one"].train == str(tmp_path / "files" / "in" / "a.csv")
    assert made.encoder == str(tmp_path / "encoders" / "small")
    assert made.teachers == {
        "one": (str(tmp_path / "runs" / "one"),),
        "two": (str(tmp_path / "runs" / "two"), str(Path.home() / "runs" / "three")),
    }


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"mine": "{base: none.yaml}"}, r"none.yaml: the base of .*mine.yaml cannot be read"),
        ({"mine": "{base: 3}"}, r"mine.yaml: base: must be a recipe file, found 3"),
        ({"mine": "{base: mine.yaml}"}, r"mine.yaml: base: mine.yaml is itself based on this recipe"),
        ({"mine": "{base: b.yaml}", "b": "{base: mine.yaml}"}, r"b.yaml: base: mine.yaml is itself based on"),
        ({"mine": "{base: b.yaml}", "b": "[1]"}, r"b.yaml: a recipe must be a mapping"),
        ({"mine": "{base: b.yaml, train: 3}", "b": BASE}, r"mine.yaml: train: must be a mapping .*, found 3"),
        ({"mine": "{base: b.yaml, tasks: {one: 3}}", "b": BASE}, r"mine.yaml: tasks.one: must be a mapping"),
    ],
)
def test_an_invalid_base_is_refused(tmp_path: Path, files: dict[str, str], words: str) -> None:
    with pytest.raises(UserError, match=words):
        read_recipe(written(tmp_path, **files) / "mine.yaml")
