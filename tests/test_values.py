"""Plain values -> types."""

from dataclasses import dataclass
from typing import Any, Literal

import pytest

from polytask.types import Swap, UserError
from polytask.values import convert, load_yaml, unknown


@dataclass(frozen=True)
class Inner:
    size: int
    name: str = "x"


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        ("1e-5", float, 1e-5),
        (3, float, 3.0),
        (3.0, int, 3),
        (7, str, "7"),
        (None, int | None, None),
        ("both", int | str, "both"),
        ([1, 2], tuple[int, ...], (1, 2)),
        ("a", tuple[str, ...], ("a",)),
        ([0, "5"], tuple[float, float], (0.0, 5.0)),
        ({"size": 2}, Inner, Inner(2)),
        ("name", Swap, Swap("name")),
        ({"name": "n", "a": 1}, Swap, Swap("n", {"a": 1})),
        ("b", Literal["a", "b"], "b"),
        (True, bool, True),
    ],
)
def test_converted(value: Any, kind: Any, expected: Any) -> None:
    assert convert(value, kind, "here") == expected
    assert type(convert(value, kind, "here")) is type(expected)


@pytest.mark.parametrize(
    ("value", "kind", "message"),
    [
        (True, int, "here: a whole number is needed, found True"),
        (1.5, int, "here: a whole number is needed, found 1.5"),
        ("inf", float, "here: a number is needed, found 'inf'"),
        (float("nan"), float, "here: a number is needed"),
        (1, bool, "here: true or false is needed, found 1"),
        (["a"], str, "here: text is needed"),
        (None, int, "here: a whole number is needed, found None"),
        ({"sise": 2}, Inner, r"here: there is no field 'sise' \(did you mean size\?\)"),
        ({}, Inner, "here: the field size is missing"),
        ({"size": "big"}, Inner, "here: size: a whole number is needed, found 'big'"),
        ([1, 2, 3], tuple[float, float], "here: 2 values are needed, found 3"),
        ("c", Literal["a", "b"], "here: 'c' is not one of: a, b"),
    ],
)
def test_refused(value: Any, kind: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        convert(value, kind, "here")


def test_yaml_is_plain() -> None:
    assert load_yaml("a: [1, 2]", "f") == {"a": [1, 2]}
    with pytest.raises(UserError, match="f: not valid YAML"):
        load_yaml("a: !!python/name:os.system", "f")


def test_unknown_names_are_met_with_the_nearest() -> None:
    assert unknown("at", "colour", ["color", "size"], "field").endswith("(did you mean color?). Valid: color, size")
