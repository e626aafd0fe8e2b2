"""Study files: variants and grids, and what is refused before anything runs."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from polytask.settings import MethodChoice
from polytask.studies.study import differences, read_study, shown
from polytask.types import UserError

BASE = {"tasks": {"one": {"kind": "yes_no", "text": ["a", "b"], "label": "l", "train": "t.csv", "dev": "d.csv"}}}


def study(folder: Path, **content: Any) -> Any:
    (folder / "study.yaml").write_text(yaml.safe_dump({"base": BASE, **content}, sort_keys=False))
    return read_study(folder / "study.yaml")


def test_named_variants(tmp_path: Path) -> None:
    made = study(
        tmp_path,
        set={"train.epochs": 7},
        seeds=[3, 4],
        variants={"plain": None, "bi": {"tasks.one.head": {"name": "bi", "form": "concat"}}},
    )
    assert made.reference == "plain"
    assert made.recipes["bi"].tasks["one"].head == MethodChoice("bi", {"form": "concat"})
    assert made.recipes["plain"].tasks["one"].head is None
    assert {recipe.train.epochs for recipe in made.recipes.values()} == {7}
    assert made.recipe("bi", 4).seed == 4
    assert made.margin == 0.5
    assert study(tmp_path, variants={"plain": None}, margin=2).margin == 2.0
    assert made.recipes["plain"].tasks["one"].train == str(tmp_path / "t.csv")
    assert differences(made.recipes) == {
        "tasks.one.head": {"plain": None, "bi": "bi"},
        "tasks.one.head.form": {"plain": None, "bi": "concat"},
    }


def test_a_grid_is_every_combination(tmp_path: Path) -> None:
    made = study(tmp_path, grid={"sampler": ["proportional", "round_robin"], "optimizer.lr": [1e-4, 5e-5]})
    assert list(made.recipes) == [
        "sampler=proportional, optimizer.lr=0.0001",
        "sampler=proportional, optimizer.lr=5e-05",
        "sampler=round_robin, optimizer.lr=0.0001",
        "sampler=round_robin, optimizer.lr=5e-05",
    ]
    assert made.seeds == (0, 1, 2)
    assert made.recipes["sampler=round_robin, optimizer.lr=5e-05"].optimizer == MethodChoice("adamw", {"lr": 5e-5})


def test_the_base_can_be_another_file(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "base.yaml").write_text(yaml.safe_dump(BASE))
    made = study(
        tmp_path, base="in/base.yaml", variants={"a": {}, "b": {"seed_of_nothing": 1}} | {"b": {"max_length": 9}}
    )
    assert made.recipes["a"].tasks["one"].train == str(tmp_path / "in" / "t.csv")


def test_a_variant_can_be_a_recipe_file(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(yaml.safe_dump(BASE))
    (tmp_path / "short.yaml").write_text(yaml.safe_dump({"base": "base.yaml", "max_length": 9}))
    variants = {"base": "base.yaml", "short": "short.yaml", "shorter": {"recipe": "short.yaml", "max_length": 8}}
    made = study(tmp_path, base=None, set={"train.epochs": 7}, variants=variants)
    assert [recipe.max_length for recipe in made.recipes.values()] == [128, 9, 8]
    assert {recipe.train.epochs for recipe in made.recipes.values()} == {7}
    assert {recipe.name for recipe in made.recipes.values()} == {"study"}
    assert made.settings["short"] == {"recipe": "short.yaml"}


def test_values_in_names() -> None:
    assert shown({"name": "bi", "form": "concat"}) == "bi(form=concat)"
    assert shown({"name": "cross"}) == "cross"
    assert shown(0.5) == "0.5"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({}, "give either variants .named. or a grid"),
        ({"variants": {"a": {}}, "grid": {"seed": [1]}}, "give either variants"),
        ({"variants": {"a": {}, "b": {}}}, "the variants 'a' and 'b' are the same recipe"),
        ({"variants": {"a": {}, "b": {"max_length": 128}}}, "the variants 'a' and 'b' are the same recipe"),
        (
            {"variants": {"a": {"smapler": "round_robin"}}},
            r"variant a\): there is no field 'smapler' .did you mean sampler",
        ),
        ({"variants": {"a": {"train.epocs": 1}}}, r"variant a\): train: there is no field 'epocs'"),
        ({"variants": {"a": {"seed": 1}}}, "seed cannot be set; use `seeds:`"),
        ({"variants": {"a": {}}, "set": {"seed": 1}}, "seed cannot be set; use `seeds:`"),
        ({"variants": {"a": {}}, "set": {"recipe": "b.yaml"}}, "set: cannot have recipe; use `base:`"),
        ({"variants": {"a": 3}}, "variants.a: must be recipe fields or a recipe file, found 3"),
        ({"variants": {"a/b": {}}}, "no slashes"),
        ({"grid": {"sampler": "proportional"}}, "grid.sampler: must be a list of values"),
        ({"variants": {"a": {}}, "reference": "b"}, "reference: there is no variant 'b'"),
        ({"variants": {"a": {}}, "seeds": [1, 1]}, "seeds: must be one or more different"),
        ({"variants": {"a": {}}, "seeds": []}, "seeds: must be one or more different"),
        ({"variants": {"a": {}}, "base": "none.yaml"}, r"none\.yaml: the base recipe cannot be read"),
        ({"variants": {"a": "none.yaml"}}, r"none\.yaml: the base recipe cannot be read"),
        ({"variants": {"a": {}}, "base": None}, "base: must be a recipe file or a recipe, found None"),
        ({"variants": {"a": {}}, "base": 3}, "base: must be a recipe file or a recipe, found 3"),
        ({"variants": {"a": {}}, "margin": -1}, "margin: must be in .0, 100. points, found -1"),
        ({"variants": {"a": {}}, "margin": "wide"}, "margin"),
        ({"variants": {"a": {}}, "sed": [1]}, "there is no field 'sed' .did you mean seeds"),
    ],
)
def test_refused(tmp_path: Path, content: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        study(tmp_path, **content)


def test_a_missing_study(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none\.yaml: the study cannot be read"):
        read_study(tmp_path / "none.yaml")
