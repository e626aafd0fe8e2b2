"""A label has one name in all its spellings, and an invalid label is an error that says what was expected."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polytask.kinds.base import LabelReader
from polytask.kinds.names import MOST_CLASSES, LabelProblem, class_name, sorted_classes
from polytask.kinds.table import KINDS
from polytask.settings import TaskSpec
from polytask.types import YES_NO, Label, LabelKind, LabelSpace, UserError


def spec(kind: LabelKind, classes: tuple[str, ...] | None = None, range: tuple[float, float] | None = None) -> TaskSpec:
    return TaskSpec("t", kind, ("text",), "label", "train.csv", "dev.csv", classes=classes, range=range)


def label_reader(task: TaskSpec, known: LabelSpace | None = None) -> LabelReader:
    return KINDS[task.kind].reader(task, known)


def label_space(task: TaskSpec, names: Sequence[str], stored: np.ndarray | None = None) -> LabelSpace:
    return KINDS[task.kind].space(task, {"names": names}, 0, stored)


def as_targets(space: LabelSpace, names: Sequence[str], stored: np.ndarray) -> np.ndarray:
    return KINDS[space.kind].targets(space, {"names": names}, stored)


def as_label(kind: LabelKind, names: Sequence[str], stored: float) -> Label:
    return KINDS[kind].label({"names": names}, stored)


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


def test_classes_are_numbered_as_they_appear_and_put_in_order_later() -> None:
    reader = label_reader(spec("classes"))
    stored = np.array([reader.read(value) for value in ("10", 2, "2.0", "1", 10.0)])
    space = label_space(spec("classes"), reader.names)
    assert stored.tolist() == [0, 1, 1, 2, 0]
    assert space == LabelSpace("classes", ("1", "2", "10"))
    targets = as_targets(space, reader.names, stored)
    assert targets.tolist() == [2, 1, 1, 0, 2]
    assert targets.dtype == np.int64
    assert as_label("classes", reader.names, 0) == "10"


def test_given_classes_keep_their_order_and_close_the_list() -> None:
    reader = label_reader(spec("classes", ("good", "bad", "3.0")))
    assert [reader.read(value) for value in ("bad", "good", "3")] == [1, 0, 2]
    with pytest.raises(LabelProblem, match=r"not one of the task's classes; expected good, bad, 3$"):
        reader.read("Good")
    assert label_space(spec("classes", ("good", "bad")), ()).classes == ("good", "bad")


def test_a_dev_label_must_be_among_the_training_labels() -> None:
    reader = label_reader(spec("classes"), known=LabelSpace("classes", ("a", "b")))
    assert reader.read("b") == 1
    with pytest.raises(LabelProblem, match="not among the labels of the training rows; expected a, b"):
        reader.read("c")


@pytest.mark.parametrize("value", [1, 1.0, "1", "1.0", "true", "TRUE", "Yes", " y ", "Y", True])
def test_yes(value: object) -> None:
    assert label_reader(spec("yes_no")).read(value) == 1


@pytest.mark.parametrize("value", [0, 0.0, "0", "0.0", "False", "no", "N", False])
def test_no(value: object) -> None:
    assert label_reader(spec("yes_no")).read(value) == 0


def test_neither_yes_nor_no() -> None:
    for value in ("2", "maybe", 0.5):
        with pytest.raises(LabelProblem, match="neither yes nor no; expected 1/0, true/false, yes/no or y/n"):
            label_reader(spec("yes_no")).read(value)
    assert label_space(spec("yes_no"), ()) is YES_NO
    assert as_targets(YES_NO, (), np.array([0, 1])).dtype == np.float32
    assert as_label("yes_no", (), 1) == "yes"


def test_scores_are_inside_their_range() -> None:
    reader = label_reader(spec("score", range=(1, 5)))
    assert [reader.read(value) for value in ("1", 5, " 2.5 ", "1e0")] == [1.0, 5.0, 2.5, 1.0]
    for value, problem in (
        ("5.01", "outside the range"),
        (-1, "outside"),
        ("high", "not a number"),
        ("inf", "not a num"),
    ):
        with pytest.raises(LabelProblem, match=f"{problem}.*; expected a number from 1 to 5"):
            reader.read(value)
    for value in ("nan", "1_0", "3,5", 10**400):
        with pytest.raises(LabelProblem):
            reader.read(value)
    space = label_space(spec("score", range=(1, 5)), ())
    targets = as_targets(space, (), np.array([1.0, 3.0, 5.0]))
    assert targets.tolist() == [0.0, 0.5, 1.0]
    assert targets.dtype == np.float32
    assert as_label("score", (), 2.5) == 2.5


def test_scores_are_standardized_by_the_training_rows() -> None:
    task, stored = spec("score", range=(1, 5)), np.array([1.0, 3.0, 5.0, 3.0], dtype=np.float32)
    space = label_space(replace(task, standardize=True), (), stored=stored)
    assert space.standardized_by == (3.0, pytest.approx(math.sqrt(2)))
    assert space.from_standardized(0.0) == 0.5
    assert space.unscaled(space.from_standardized(1.0)) == pytest.approx(3 + math.sqrt(2))
    assert as_targets(space, (), stored).tolist() == [0.0, 0.5, 1.0, 0.5]  # targets do not depend on it
    assert label_space(replace(task, standardize=False), (), stored=stored).standardized_by is None
    same = np.full(4, 3.0, dtype=np.float32)
    assert label_space(replace(task, standardize=True), (), stored=same).standardized_by is None


@pytest.mark.parametrize("kind", ["classes", "yes_no", "score"])
@pytest.mark.parametrize("value", [None, "", "  ", math.nan])
def test_an_empty_label_is_a_problem_for_every_kind(kind: LabelKind, value: object) -> None:
    with pytest.raises(LabelProblem, match="the label is empty"):
        label_reader(spec(kind, range=(0, 1))).read(value)


def test_a_list_is_not_a_label() -> None:
    with pytest.raises(LabelProblem, match="expected a name or a number"):
        label_reader(spec("classes")).read([1])


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (spec("classes", ("a",)), r"task 't': classes must be two or more different names, found \['a'\]"),
        (spec("classes", ("1", "1.0")), "two or more different names"),
        (spec("score", range=(5, 0)), r"range must be the lowest and the highest score, found \[5, 0\]"),
        (spec("score", range=(0, math.inf)), "must be the lowest"),
    ],
)
def test_recipes_that_cannot_be(task: TaskSpec, message: str) -> None:
    with pytest.raises(UserError, match=message):
        label_reader(task)


@pytest.mark.parametrize(("names", "found"), [(["x"], "only the class 'x'"), ([], "no labels")])
def test_fewer_than_two_classes(names: list[str], found: str) -> None:
    with pytest.raises(UserError, match=f"train.csv: column 'label' of task 't' has {found}; expected two or more"):
        label_space(spec("classes"), names)


def test_a_column_of_texts_is_not_taken_for_classes() -> None:
    reader = label_reader(spec("classes"))
    for i in range(MOST_CLASSES):
        reader.read(f"name {i}")
    with pytest.raises(UserError, match="more than 10,000 different labels; is this the label column"):
        reader.read("one more")
