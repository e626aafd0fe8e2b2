"""A class has one name in all its spellings, and a label that cannot be used is an error that says why."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polytask.kinds.names import (
    MOST_CLASSES,
    ClassNumbers,
    LabelProblem,
    check_number_of_classes,
    class_name,
    given_classes,
    is_empty,
    plain_value,
    sorted_classes,
    yes_or_no,
)
from polytask.settings import TaskSpec
from polytask.types import LabelSpace, UserError


def spec(classes: tuple[str, ...] | None = None, train: str | None = "train.csv") -> TaskSpec:
    return TaskSpec("t", "classes", ("text",), "label", train, "dev.csv", classes=classes)


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (3, "3"), (3.0, "3"), ("3", "3"), ("3.0", "3"), (" 3.00 ", "3"), ("+3", "3"), ("-1.0", "-1"), ("-0", "0"),
        ("0.50", "0.5"), (0.5, "0.5"), ("007", "007"), ("1_0", "1_0"), ("nan", "nan"), (" very bad ", "very bad"),
        (True, "true"), ("3.x", "3.x"), ("٣", "٣"),
    ],
)  # fmt: skip
def test_class_names(value: str | float, name: str) -> None:
    assert class_name(value) == name
    assert class_name(name) == name


@given(st.integers() | st.floats(-1e9, 1e9, allow_nan=False))
def test_a_number_and_its_text_are_the_same_class(value: float) -> None:
    assert class_name(value) == class_name(str(value))
    assert float(class_name(value)) == float(value)


def test_classes_sort_as_numbers_or_as_letters() -> None:
    assert sorted_classes(["10", "9", "-1", "0.5"]) == ("-1", "0.5", "9", "10")
    assert sorted_classes(["10", "9", "b"]) == ("10", "9", "b")


@pytest.mark.parametrize("value", [None, "", " \t\n", math.nan])
def test_empty_values_are_no_labels(value: object) -> None:
    assert is_empty(value)
    with pytest.raises(LabelProblem, match="the label is empty"):
        plain_value(value)


@pytest.mark.parametrize("value", [0, 0.0, False, "0", "nan"])
def test_zero_and_words_are_not_empty(value: object) -> None:
    assert not is_empty(value)
    assert plain_value(value) == value


@pytest.mark.parametrize("value", [[1], {"a": 1}, (), b"a"])
def test_lists_and_tables_are_no_labels(value: object) -> None:
    with pytest.raises(LabelProblem, match="a list or table; expected a name or a number"):
        plain_value(value)


def test_classes_of_the_recipe_are_two_or_more_different_names() -> None:
    assert given_classes(spec()) is None
    assert given_classes(spec(("good", "3.0"))) == ("good", "3")
    for classes in (("a",), ("1", "1.0")):
        with pytest.raises(UserError, match=r"task 't': classes must be two or more different names, found \['"):
            given_classes(spec(classes))


@pytest.mark.parametrize(("names", "found"), [(["x"], "only the class 'x'"), ([], "no labels")])
def test_fewer_than_two_classes(names: list[str], found: str) -> None:
    with pytest.raises(UserError, match=f"train.csv: column 'label' of task 't' has {found}; expected two or more"):
        check_number_of_classes(spec(), names)
    check_number_of_classes(spec(), ["x", "y"])


@pytest.mark.parametrize("name", ["1", "true", "TRUE", "Yes", "y", "Y"])
def test_yes(name: str) -> None:
    assert yes_or_no(name) == 1


@pytest.mark.parametrize("name", ["0", "False", "no", "N"])
def test_no(name: str) -> None:
    assert yes_or_no(name) == 0


@pytest.mark.parametrize("name", ["2", "maybe", "0.5", ""])
def test_neither_yes_nor_no(name: str) -> None:
    with pytest.raises(LabelProblem, match="neither yes nor no; expected 1/0, true/false, yes/no or y/n"):
        yes_or_no(name)


# --- numbers ----------------------------------------------------------------------------------------------------------
@given(st.lists(st.sampled_from("abcdef")))
def test_classes_are_numbered_as_they_appear(names: list[str]) -> None:
    numbers = ClassNumbers(spec(), None)
    found = [numbers.number(name) for name in names]
    assert numbers.names == tuple(dict.fromkeys(names))
    assert [numbers.names[number] for number in found] == names


def test_given_classes_keep_their_order_and_are_all_there_is() -> None:
    numbers = ClassNumbers(spec(("good", "bad", "3.0")), LabelSpace("classes", ("bad", "good")))
    assert [numbers.number(name) for name in ("bad", "good", "3")] == [1, 0, 2]
    with pytest.raises(LabelProblem, match=r"not one of the task's classes; expected good, bad, 3$"):
        numbers.number("Good")


@pytest.mark.parametrize(("train", "rows"), [("train.csv", "training"), (None, "dev")])
def test_another_split_has_no_new_classes(train: str | None, rows: str) -> None:
    numbers = ClassNumbers(spec(train=train), LabelSpace("classes", ("a", "b")))
    assert numbers.number("b") == 1
    with pytest.raises(LabelProblem, match=f"not among the labels of the {rows} rows; expected a, b"):
        numbers.number("c")
    many = ClassNumbers(spec(), LabelSpace("classes", tuple(f"c{i}" for i in range(23))))
    with pytest.raises(LabelProblem, match=r"c19 and 3 more$"):
        many.number("d")


def test_a_column_of_texts_is_not_taken_for_classes() -> None:
    numbers = ClassNumbers(spec(), None)
    for i in range(MOST_CLASSES):
        numbers.number(f"name {i}")
    assert numbers.number("name 3") == 3
    with pytest.raises(UserError, match="more than 10,000 different labels; is this the label column"):
        numbers.number("one more")
