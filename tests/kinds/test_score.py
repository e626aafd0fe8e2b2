"""Scores with and without a range: what heads learn, and what is predicted."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from polytask.kinds.names import LabelProblem
from polytask.kinds.table import KINDS
from polytask.settings import TaskSpec
from polytask.types import LabelSpace, UserError, has_label

KIND = KINDS["score"]
PRICES = np.array([120.0, 80.0, 400.0, -30.0, 95.5])


def spec(**more: Any) -> TaskSpec:
    return TaskSpec("t", "score", ("text",), "label", "train.csv", "dev.csv", **more)


def space(scores: np.ndarray, **more: Any) -> LabelSpace:
    return KIND.space(spec(**more), {}, 0, scores)


def test_without_a_range_targets_are_standardized_scores() -> None:
    labels = space(PRICES)
    assert not labels.bounded
    targets = KIND.targets(labels, {}, PRICES)
    np.testing.assert_allclose(targets, (PRICES - PRICES.mean()) / PRICES.std(), rtol=1e-5)
    np.testing.assert_allclose(KIND.for_metrics(targets, labels), PRICES, rtol=1e-5)


def test_no_standardized_score_means_that_there_is_no_label() -> None:
    """Half of the scores are 10 and half 20, so the lower ones are exactly one standard deviation below the mean."""
    scores = np.array([10.0, 20.0])
    targets = KIND.targets(space(scores), {}, scores)
    assert has_label(targets).all()
    np.testing.assert_allclose(targets, [-1, 1], rtol=1e-6)


def test_without_a_range_predictions_are_not_limited() -> None:
    labels = space(PRICES)
    outputs = torch.tensor([-3.0, 0.0, 1.0, 7.5])
    expected = PRICES.mean() + outputs.numpy() * PRICES.std()
    assert [label for label, _ in KIND.decode(outputs, labels)] == pytest.approx(expected.tolist())
    assert KIND.predicted(outputs, labels).tolist() == outputs.tolist()


def test_with_a_range_predictions_stay_in_it() -> None:
    labels = space(PRICES, range=(-100.0, 500.0))
    assert labels.bounded
    assert [label for label, _ in KIND.decode(torch.tensor([-3.0, 0.5, 7.5]), labels)] == [-100, 200, 500]


@pytest.mark.parametrize("scores", [[3.0, 3.0, 3.0], [0.0, 0.0], [1e9], []])
def test_scores_that_are_all_the_same_or_missing_have_a_usable_scale(scores: list[float]) -> None:
    labels = space(np.array(scores))
    assert labels.high - labels.low == 1
    assert np.isfinite(KIND.targets(labels, {}, np.array(scores))).all()


@pytest.mark.parametrize("value", ["-1e6", 12, " 3.5 ", 1e100])
def test_any_number_is_a_label(value: object) -> None:
    assert KIND.reader(spec()).read(value) == float(str(value))


@pytest.mark.parametrize("value", ["inf", "-Infinity", math.inf, "1_000", "cheap", "1e999"])
def test_what_is_no_number_is_refused(value: object) -> None:
    with pytest.raises(LabelProblem, match=r"not a number; expected a number$"):
        KIND.reader(spec()).read(value)


@pytest.mark.parametrize("value", ["-45000,5", " 3,5", "1,200", "1.234,50", "1'200", "1 200,5", "35 %", "€ 3", "7.50€"])
def test_a_number_that_is_written_in_another_way_is_named(value: str) -> None:
    with pytest.raises(LabelProblem, match=r"not a number; expected a number, written like 1234\.5$"):
        KIND.reader(spec()).read(value)
    with pytest.raises(LabelProblem, match=r"not a number; expected a number from 1 to 5, written like 1234\.5$"):
        KIND.reader(spec(range=(1, 5))).read(value)


@pytest.mark.parametrize("value", ["1.1e100", -1e300])
def test_a_number_whose_square_is_no_number_is_refused(value: object) -> None:
    with pytest.raises(LabelProblem, match=r"too large; expected a number from -1e\+100 to 1e\+100"):
        KIND.reader(spec()).read(value)


# --- with a range -----------------------------------------------------------------------------------------------------
def test_labels_are_inside_the_range() -> None:
    reader = KIND.reader(spec(range=(1, 5)))
    assert [reader.read(value) for value in ("1", 5, " 2.5 ", "1e0")] == [1.0, 5.0, 2.5, 1.0]
    for value, problem in (("5.01", "outside the range"), (-1, "outside"), ("high", "not a number"), ("inf", "not a")):
        with pytest.raises(LabelProblem, match=f"{problem}.*; expected a number from 1 to 5"):
            reader.read(value)
    for value in ("nan", "1_0", "3,5", 10**400, None, "", "  ", math.nan):
        with pytest.raises(LabelProblem):
            reader.read(value)
    targets = KIND.targets(space(np.zeros(0), range=(1, 5), standardize=False), {}, np.array([1.0, 3.0, 5.0]))
    assert targets.tolist() == [0.0, 0.5, 1.0]
    assert targets.dtype == np.float32
    assert KIND.label({}, 2.5) == 2.5


def test_scores_are_standardized_by_the_training_rows() -> None:
    stored = np.array([1.0, 3.0, 5.0, 3.0], dtype=np.float32)
    labels = space(stored, range=(1, 5), standardize=True)
    assert labels.standardized_by == (3.0, pytest.approx(math.sqrt(2)))
    assert labels.from_standardized(0.0) == 0.5
    assert labels.unscaled(labels.from_standardized(1.0)) == pytest.approx(3 + math.sqrt(2))
    assert KIND.targets(labels, {}, stored).tolist() == [0.0, 0.5, 1.0, 0.5]  # targets do not depend on it
    assert space(stored, range=(1, 5), standardize=False).standardized_by is None
    assert space(np.full(4, 3.0), range=(1, 5), standardize=True).standardized_by is None


@pytest.mark.parametrize("range", [(5, 0), (0, math.inf), (2, 2), (math.nan, 1)])
def test_a_range_is_the_lowest_and_the_highest_score(range: tuple[float, float]) -> None:
    with pytest.raises(UserError, match=r"task 't': range must be the lowest and the highest score, found \["):
        KIND.reader(spec(range=range))
