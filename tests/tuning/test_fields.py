"""The fields to vary: how they are written, what is refused, and those that are varied by default."""

from pathlib import Path
from typing import Any

import pytest

from polytask.recipe.reading import portable_content, read_recipe, recipe_from
from polytask.tuning.fields import Choices, Range, check_fields, default_fields, read_field, values_of
from polytask.types import UserError

from .conftest import QUICKSTART


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("optimizer.lr=1e-5..1e-3:log", Range("optimizer.lr", 1e-5, 1e-3, log=True)),
        ("dropout=0..0.3", Range("dropout", 0, 0.3)),
        ("train.batch_size=8..64:log", Range("train.batch_size", 8, 64, log=True)),
        ("sampler=round_robin,annealed", Choices("sampler", ("round_robin", "annealed"))),
        ("train.batch_size=8, 16", Choices("train.batch_size", (8, 16))),
        ("optimizer.lr=1e-3,3.0e-4", Choices("optimizer.lr", (1e-3, 3e-4))),
        ("train.ema=null,0.99", Choices("train.ema", (None, 0.99))),
        ("adapter=none,{name: pal, size: 96}", Choices("adapter", ("none", {"name": "pal", "size": 96}))),
        ("optimizer=adamw,{name: lion, lr: 1e-4}", Choices("optimizer", ("adamw", {"name": "lion", "lr": 1e-4}))),
        ("tasks.a.train=../a.csv,../b.csv", Choices("tasks.a.train", ("../a.csv", "../b.csv"))),
    ],
)
def test_forms(text: str, field: Any) -> None:
    assert read_field(text) == field


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("optimizer.lr", "must be FIELD=A,B or FIELD=LOW..HIGH"),
        ("optimizer.lr=", "must have two or more different values"),
        ("optimizer.lr=1e-4", "must have two or more different values"),
        ("dropout=0.1,0.1", "must have two or more different values"),
        ("dropout=0.3..0.1", "the range is empty: its low end 0.3 must be below its high end 0.1"),
        ("dropout=0.1..0.1", "the range is empty"),
        ("dropout=0..0.1:log", "the low end of a range with :log must be above 0"),
        ("dropout=0..0.1:linear", "only :log can follow"),
        ("dropout=0.1.2..3", "must have two or more different values"),
    ],
)
def test_wrong_forms_are_refused(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        read_field(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("train.lr=1e-5..1e-4", "--vary train.lr: .*there is no field 'lr'"),
        ("optimizer.momentum=0.1,0.2", "--vary optimizer.momentum: .*'momentum'"),
        ("tasks.opinions.weight=1,2", "there is no task 'opinions'"),
        ("train.batch_size=1.5..8.5", "must be an integer"),
        ("dropout=0.1..1.5", "must be in"),
        ("sampler=round_robin,square", "there is no sampler 'square'"),
        ("seed=0,1", "cannot be varied"),
        ("tasks.opinion.dev=a.csv,b.csv", "cannot be varied"),
        ("tasks.opinion.metric=accuracy,f1", "cannot be varied"),
        ("tasks.opinion.trained=true,false", "cannot be varied"),
        ("tasks.opinion.separator=a,b", "cannot be varied"),
        ("tasks.opinion={kind: classes},{kind: yes_no}", "cannot be varied"),
    ],
)
def test_fields_and_values_that_do_not_exist(text: str, message: str, tiny_settings: list[str]) -> None:
    with pytest.raises(UserError, match=message):
        check_fields([read_field(text)], portable_content(QUICKSTART, tiny_settings))


def test_a_field_named_twice(tiny_settings: list[str]) -> None:
    fields = [read_field("dropout=0,0.1"), read_field("dropout=0,0.2")]
    with pytest.raises(UserError, match="--vary dropout: the field is named twice"):
        check_fields(fields, portable_content(QUICKSTART, tiny_settings))


def test_defaults_are_fields_of_the_recipe_around_its_values(tiny_settings: list[str]) -> None:
    recipe = read_recipe(QUICKSTART, [*tiny_settings, "adapter={name: pal, size: 24, heads: 4}"])
    fields = default_fields(recipe)
    names = ["optimizer.lr", "train.head_lr", "train.batch_size", "train.warmup", "dropout", "sampler", "adapter.size"]
    assert [field.field for field in fields] == names
    own = values_of(recipe, fields)
    assert own == {
        "optimizer.lr": 3e-3,
        "train.head_lr": 1e-3,
        "train.batch_size": 16,
        "train.warmup": 0.1,
        "dropout": None,
        "sampler": "round_robin",
        "adapter.size": 24,
    }
    assert all(field.contains(own[field.field]) for field in fields)
    check_fields(fields, portable_content(QUICKSTART, [*tiny_settings, "adapter={name: pal, size: 24, heads: 4}"]))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tasks.question.head", "cosine"),
        ("tasks.similarity.head", {"name": "cosine", "map": "direct"}),
        ("tasks.similarity.head.map", "direct"),
        ("tasks.question.head.map", "linear"),  # the default, which the recipe leaves out
        ("optimizer", {"name": "fused_adamw", "lr": 1e-4}),
        ("policy", "sum"),
        ("regularizers", [{"name": "r_drop", "weight": 2.0}]),
        ("train.ema", None),
    ],
)
def test_the_own_value_of_a_field_is_the_whole_one(field: str, value: Any) -> None:
    recipe = read_recipe(QUICKSTART, ["regularizers=[{name: r_drop, weight: 2.0}]"])
    assert values_of(recipe, [Choices(field, ())]) == {field: value}


def test_one_task_has_no_sampler_and_no_head_rate_to_vary(tmp_path: Path) -> None:
    task = {"kind": "classes", "text": "text", "label": "opinion", "train": "sample:opinions-train"}
    recipe = recipe_from({"tasks": {"one": {**task, "dev": "sample:opinions-dev"}}, "train": {"warmup": 50}})
    assert [f.field for f in default_fields(recipe)] == ["optimizer.lr", "train.batch_size", "dropout"]


def test_a_sampler_of_one_trained_task_is_not_varied(tiny_settings: list[str]) -> None:
    only = [f"tasks.{task}.trained=false" for task in ("question", "similarity")]
    settings = [*tiny_settings, *only, "tasks.similarity.train=null", "tasks.opinion.rows={sample: 40}"]
    fields = default_fields(read_recipe(QUICKSTART, settings))
    assert "sampler" not in [field.field for field in fields]
    check_fields(fields, portable_content(QUICKSTART, settings))


def test_suggested_numbers_have_three_digits_and_stay_in_the_range() -> None:
    field = Range("optimizer.lr", 1.2345e-5, 9.8765e-4, log=True)
    assert field.value(0.000123456) == 0.000123
    assert field.value(1.2345e-5) == 1.2345e-5
    assert field.value(9.8765e-4) == 9.8765e-4
    assert Range("train.batch_size", 8, 64).value(13) == 13
    methods = Choices("adapter", ("none", {"name": "pal", "size": 96}))
    assert [methods.parameter(value) for value in methods.values] == ["none", "pal(size=96)"]
    assert methods.value("pal(size=96)") == {"name": "pal", "size": 96}
