"""Whatever a recipe file holds, reading it gives a recipe or a UserError that names it: never another exception."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from polytask.recipe.reading import read_recipe, write_recipe
from polytask.recipe.records import Recipe, recipe_to_mapping
from polytask.settings import TaskSpec, TrainSettings
from polytask.types import UserError

PIECES = [
    *(
        "tasks:",
        "train:",
        "base:",
        "name:",
        "seed:",
        " a:",
        "  b: c",
        "- x",
        "\n",
        " ",
        "\t",
        ":",
        "- ",
        "&a ",
        "*a",
        "<<: *a",
        "{",
        "}",
    ),
    *(
        "[",
        "]",
        ",",
        '"',
        "'",
        "!!int x",
        "!!python/name:os.system",
        "2001-99-99",
        ".inf",
        "0x" + "f" * 3000,
        "\0",
        "\x85",
        "é",
        "%YAML 9",
    ),
    *(
        "? [a]",
        "|",
        ">",
        "#",
        "---",
        "...",
        "~",
        "@",
        "`",
        "!!binary x",
        "!!set {a, b}",
        "!!timestamp x",
        "1_0",
        "1:60",
        "\ud800",
    ),
]
scalar = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(
        ["yes_no", "classes", "score", "text", "adamw", "1e-5", "~nobody-here/x", "${NOT_SET}", "../x", "/"]
    )
    | st.dates()
    | st.just(5000).map("x".__mul__)
)
value = st.recursive(
    scalar,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.just("name") | scalar, inner, max_size=3),
    max_leaves=5,
)
FIELDS = [
    ("base",),
    ("no such field",),
    *((field.name,) for field in fields(Recipe)),
    *(("train", field.name) for field in fields(TrainSettings)),
    *(("tasks", "one", field.name) for field in fields(TaskSpec)),
    ("tasks", "../x"),
]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("random") / "recipe.yaml"


def read(file: Path, text: str) -> Recipe | None:
    file.write_bytes(text.encode("utf-8", "surrogatepass"))
    try:
        return read_recipe(file)
    except UserError as error:
        if str(file) not in str(error):
            raise AssertionError(f"does not name the file: {error}") from error
        return None


@settings(max_examples=200, deadline=None)
@given(text=st.text(max_size=80) | st.lists(st.sampled_from(PIECES), max_size=25).map("".join))
def test_random_text(file: Path, text: str) -> None:
    read(file, text)


@settings(max_examples=300, deadline=None)
@given(changes=st.lists(st.tuples(st.sampled_from(FIELDS), value), min_size=1, max_size=3))
def test_a_good_recipe_with_random_fields(file: Path, changes: list[tuple[tuple[str, ...], Any]]) -> None:
    task = {"kind": "classes", "text": "t", "label": "l", "train": "a.csv", "dev": "b.csv"}
    content: dict[Any, Any] = {"tasks": {"one": task}, "train": {"epochs": 2}}
    for place, changed in changes:
        inside = content
        for name in place[:-1]:
            inside = inside.get(name) if isinstance(inside.get(name), dict) else {}  # type: ignore[assignment]
        inside[place[-1]] = changed
    made = read(file, yaml.safe_dump(content, allow_unicode=True))
    if made is not None:  # then it can be written, and means the same
        write_recipe(made, file)
        assert recipe_to_mapping(read_recipe(file)) == recipe_to_mapping(made)
