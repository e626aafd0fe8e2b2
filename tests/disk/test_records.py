"""Plain values are converted to types, or refused with the field and the value."""

from dataclasses import dataclass
from typing import Any, Literal

import pytest

from polytask.disk.records import convert
from polytask.settings import MethodChoice, NonNegative, Positive, Rate, Share, Size
from polytask.types import UserError, unknown


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
        ("name", MethodChoice, MethodChoice("name")),
        ({"name": "n", "a": 1}, MethodChoice, MethodChoice("n", {"a": 1})),
        ("b", Literal["a", "b"], "b"),
        (True, bool, True),
        (0, Rate, 0.0),
        (None, Rate | None, None),
        (65536, Size, 65536),
        ([0, 1], tuple[Share, ...], (0.0, 1.0)),
    ],
)
def test_converted(value: Any, kind: Any, expected: Any) -> None:
    assert convert(value, kind, "here") == expected
    assert type(convert(value, kind, "here")) is type(expected)


@pytest.mark.parametrize(
    ("value", "kind", "message"),
    [
        (True, int, "here: must be an integer, found True"),
        (1.5, int, "here: must be an integer, found 1.5"),
        ("inf", float, "here: must be a number, found 'inf'"),
        (float("nan"), float, "here: must be a number"),
        (1, bool, "here: must be true or false, found 1"),
        (["a"], str, "here: must be a string"),
        (None, int, "here: must be an integer, found None"),
        ({"sise": 2}, Inner, r"here: there is no field 'sise' \(did you mean size\?\)"),
        ({}, Inner, "here: the field size is missing"),
        ({"size": "big"}, Inner, "here: size: must be an integer, found 'big'"),
        ([1, 2, 3], tuple[float, float], "here: must have 2 values, found 3"),
        ("c", Literal["a", "b"], "here: must be one of a, b; found 'c'"),
        (1, Rate, r"here: must be in \[0, 1\), found 1.0"),
        (0, Positive, "here: must be above 0, found 0.0"),
        (-1, NonNegative | None, "here: must be at least 0, found -1.0"),
        (0, Size, r"here: must be in \[1, 65536\], found 0"),
        ([0.5, 2], tuple[Share, ...], r"here\[1\]: must be in \[0, 1\], found 2.0"),
        ({"a": {"b": [[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]]}}, Any, "here: must be nested at most 20 levels deep"),
    ],
)
def test_refused(value: Any, kind: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        convert(value, kind, "here")


def test_the_nearest_name_is_suggested_for_an_unknown_one() -> None:
    assert unknown("at", "colour", ["color", "size"], "field").endswith("(did you mean color?). Valid: color, size")
