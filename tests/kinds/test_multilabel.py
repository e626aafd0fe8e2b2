"""Several classes per row: all ways of writing them, thresholds that maximize F1, and formulas per class."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import f1_score

from polytask.kinds.multilabel import best_threshold, calibrated_thresholds
from polytask.kinds.names import LabelProblem, guess_separator, split_names
from polytask.kinds.table import KINDS
from polytask.losses.base import distillation_loss, symmetric_distance
from polytask.settings import TaskSpec
from polytask.types import LabelSpace, UserError

KIND = KINDS["multilabel"]
ABC = LabelSpace("multilabel", ("a", "b", "c"), separator="|")


def spec(label: str | tuple[str, ...] = "label", **more: Any) -> TaskSpec:
    return TaskSpec("t", "multilabel", ("text",), label, "train.csv", "dev.csv", **more)


# --- reading ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("value", "names"),
    [
        ("a|b", ["a", "b"]), (" a | b ", ["a", "b"]), ("a||b|", ["a", "b"]), ("b|a|b", ["b", "a"]), ("", []),
        (None, []), (float("nan"), []), ("  ", []), ([], []), ("[]", []), (["a", "b"], ["a", "b"]),
        ('["a", "b"]', ["a", "b"]), ("['a', 'b']", ["a", "b"]), ([3, "3.0", 4], ["3", "4"]), (7, ["7"]),
        ("[1, 2]", ["1", "2"]), ([None, "a", ""], ["a"]), (("a",), ["a"]), ("a, b", ["a, b"]), (True, ["true"]),
    ],
)  # fmt: skip
def test_ways_to_write_several_classes(value: object, names: list[str]) -> None:
    assert split_names(value, "|") == names


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("[a, b]", "in brackets, but not a list"),
        ('["a"', None),
        ([["a"]], "a list or table; expected a name or a number"),
        ([{"a": 1}], "a list or table"),
        ({"a": 1}, "a list or table"),
        ("[" * 5000 + "]" * 5000, "in brackets, but not a list|a list or table"),
    ],
)
def test_lists_that_cannot_be_read(value: object, problem: str | None) -> None:
    if problem is None:
        assert split_names(value, "|") == ['["a"']
        return
    with pytest.raises(LabelProblem, match=problem):
        split_names(value, "|")


@pytest.mark.parametrize(
    ("values", "separator"),
    [
        (["a", "b|c, d", "e"], "|"),
        (["a", "b;c, d"], ";"),
        (["a,b", "c"], ","),
        (["a", "b"], ","),
        (["[1, 2]", "a;b"], ";"),
        ([None, 3, ["x|y"]], ","),
    ],
)
def test_the_separator_is_guessed(values: list[object], separator: str) -> None:
    assert guess_separator(values) == separator


def test_sets_are_numbered_and_written_as_in_the_file() -> None:
    values = ["b;a", "", "c", "a;b", "b;a"]
    reader = KIND.reader(spec(), None, values)
    stored = np.array([reader.read(value) for value in values])
    labels = KIND.space(spec(), reader.meta, 0, stored)
    assert labels == LabelSpace("multilabel", ("a", "b", "c"), separator=";")
    assert stored.tolist() == [0, 1, 2, 3, 0]
    assert [KIND.label(reader.meta, number) for number in stored] == [("b", "a"), (), ("c",), ("a", "b"), ("b", "a")]
    targets = KIND.targets(labels, reader.meta, stored)
    assert targets.tolist() == [[1, 1, 0], [0, 0, 0], [0, 0, 1], [1, 1, 0], [1, 1, 0]]
    assert targets.dtype == np.float32
    assert KIND.class_counts(labels, targets) == (3, 3, 1)


def test_rows_without_labels_have_targets_of_the_right_shape() -> None:
    reader = KIND.reader(spec(), ABC, ())
    assert KIND.targets(ABC, reader.meta, np.zeros(4, np.int64)).shape == (4, 3)


def test_a_class_that_is_not_known_is_a_problem() -> None:
    reader = KIND.reader(spec(), ABC, ())
    assert reader.read("c|a") == 0
    with pytest.raises(LabelProblem, match="not among the labels of the training rows; expected a, b, c"):
        reader.read("a|d")
    given_order = KIND.reader(spec(classes=("z", "a")), None, ())
    with pytest.raises(LabelProblem, match="not one of the task's classes; expected z, a"):
        given_order.read("b")
    assert KIND.space(spec(classes=("z", "a")), given_order.meta, 0, None).classes == ("z", "a")


def test_the_separator_of_the_recipe_and_of_another_split() -> None:
    assert KIND.reader(spec(separator="/"), None, ["a|b"]).meta["separator"] == "/"
    assert KIND.reader(spec(), LabelSpace("multilabel", ("a", "b"), separator=";"), ["a|b"]).meta["separator"] == ";"


def test_predictions_are_joined_by_a_separator_that_no_class_contains() -> None:
    reader = KIND.reader(spec(), None, ())
    reader.read(["x, y", "a|b"])
    assert KIND.space(spec(), reader.meta, 0, None).separator == ";"


def test_columns_of_zeros_and_ones() -> None:
    columns = ("late", "broken")
    reader = KIND.reader(spec(columns), None, ())
    rows: list[list[object]] = [[1, 0], ["0", "0.0"], ["yes", True], [False, 1.0]]
    stored = np.array([reader.read(row) for row in rows])
    labels = KIND.space(spec(columns), reader.meta, 0, stored)
    assert labels.classes == columns  # in the recipe's order
    assert KIND.targets(labels, reader.meta, stored).tolist() == [[1, 0], [0, 0], [1, 1], [0, 1]]
    with pytest.raises(LabelProblem, match="column 'broken': neither yes nor no"):
        reader.read([1, "maybe"])
    with pytest.raises(LabelProblem, match="column 'late': the label is empty"):
        reader.read(["", 1])


@pytest.mark.parametrize(("values", "found"), [(["x", "x", ""], "only the class 'x'"), ([""], "no labels")])
def test_fewer_than_two_classes(values: list[str], found: str) -> None:
    reader = KIND.reader(spec(), None, values)
    for value in values:
        reader.read(value)
    with pytest.raises(UserError, match=f"has {found}; expected two or more"):
        KIND.space(spec(), reader.meta, 0, None)


# --- thresholds -------------------------------------------------------------------------------------------------------
@pytest.mark.slow
@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 20), st.booleans()), min_size=1, max_size=30))
def test_no_threshold_has_a_higher_f1(rows: list[tuple[int, bool]]) -> None:
    p_N, true_N = np.array([p / 20 for p, _ in rows]), np.array([true for _, true in rows])

    def f1(threshold: float) -> float:
        return float(f1_score(true_N, p_N >= threshold, zero_division=0))

    chosen = best_threshold(p_N, true_N)
    assert 0 <= chosen <= 1
    others = np.linspace(0.0125, 0.9875, 40)  # between all probabilities
    best = max(map(f1, [0.0, *others]))
    assert f1(chosen) >= best - 1e-12
    assert chosen == 0.5 or f1(0.5) < best


def test_thresholds_by_hand() -> None:
    p_N = np.array([0.9, 0.8, 0.3, 0.2, 0.1])
    assert best_threshold(p_N, np.array([1, 1, 0, 0, 0]) > 0) == 0.5
    assert best_threshold(p_N, np.array([1, 1, 1, 0, 0]) > 0) == pytest.approx(0.25)
    assert best_threshold(p_N, np.array([1, 0, 0, 0, 0]) > 0) == pytest.approx(0.85)
    assert best_threshold(p_N, np.zeros(5, bool)) == 0.5  # every threshold has an F1 of 0
    assert best_threshold(np.full(3, np.nan), np.ones(3, bool)) == 0.5  # a run that diverged


def test_thresholds_are_chosen_class_by_class_unless_given() -> None:
    outputs = torch.logit(torch.tensor([[0.9, 0.4], [0.8, 0.3], [0.3, 0.1]]))
    targets = np.array([[1, 1], [0, 1], [0, 0]], dtype=np.float32)
    two = LabelSpace("multilabel", ("a", "b"), separator="|")
    tuned = KIND.tuned(spec(), two, outputs, targets)
    assert tuned.thresholds == pytest.approx((0.85, 0.2), abs=1e-6)
    assert KIND.predicted(outputs, tuned).tolist() == targets.tolist()
    assert KIND.predicted(outputs, two).tolist() == [[1, 0], [1, 0], [0, 0]]
    fixed = spec(thresholds=0.3)
    space = KIND.space(fixed, {"names": ["a", "b"], "separator": "|"}, 0, None)
    assert space.thresholds == (0.3, 0.3)
    assert KIND.tuned(fixed, space, outputs, targets) == space


# --- formulas ---------------------------------------------------------------------------------------------------------
def test_everything_is_yes_or_no_for_each_class() -> None:
    torch.manual_seed(0)
    one, other = torch.randn(5, 3), torch.randn(5, 3)
    targets = torch.randint(0, 2, (5, 3)).float()
    yes_no = KINDS["yes_no"]
    losses = [yes_no.loss(one[:, c], targets[:, c]) for c in range(3)]
    torch.testing.assert_close(KIND.loss(one, targets), torch.stack(losses).mean())
    distances = [symmetric_distance(one[:, c], other[:, c], "yes_no") for c in range(3)]
    torch.testing.assert_close(symmetric_distance(one, other, "multilabel"), torch.stack(distances).sum())
    for form in ("kl", "cross_entropy"):
        each = [distillation_loss(one[:, c], other[:, c], "yes_no", 2.0, form) for c in range(3)]  # type: ignore[arg-type]
        together = distillation_loss(one, other, "multilabel", 2.0, form)  # type: ignore[arg-type]
        torch.testing.assert_close(together, torch.stack(each).mean())
    several = torch.randn(4, 5, 3)
    means = [yes_no.mean_outputs(several[..., c]) for c in range(3)]
    torch.testing.assert_close(KIND.mean_outputs(several), torch.stack(means, -1))


def test_decoding() -> None:
    (label, probabilities), (none, _) = KIND.decode(torch.tensor([[2.0, -1.0, 0.1], [-3.0, -2.0, -1.0]]), ABC)
    assert label == ("a", "c")
    assert none == ()
    assert probabilities is not None
    assert probabilities["b"] == pytest.approx(0.26894, abs=1e-4)


def test_calibrated_thresholds_choose_the_same_classes() -> None:
    logits, thresholds = torch.linspace(-4, 4, 33)[:, None].repeat(1, 4), (0.0, 0.13, 0.5, 0.9)
    space = LabelSpace("multilabel", ("a", "b", "c", "d"), separator="|", thresholds=thresholds)
    scaled = replace(space, thresholds=calibrated_thresholds(thresholds, 2.5))
    np.testing.assert_array_equal(KIND.predicted(logits, space), KIND.predicted(logits / 2.5, scaled))
    assert calibrated_thresholds(thresholds, 1.0) == thresholds
