"""Views select the runs of a task, or of all tasks for their mean, with the sign of each metric."""

import numpy as np
import pytest

from polytask.evaluation.comparison.records import TaskData
from polytask.evaluation.comparison.statistics import Runs
from polytask.evaluation.comparison.views import Pair, View

ACCURACY = TaskData("topic", "classes", 3, "accuracy", np.array([0, 1, 2, 1]), {})
ERROR = TaskData("same", "score", 0, "mae", np.array([0.0, 2.0, 5.0]), {})
MEAN = View("mean", (ACCURACY, ERROR), (0, 1), greater_is_better=True)
ONLY_ERROR = View("same", (ERROR,), (1,), greater_is_better=False)


def runs(*scores: float, examples: int) -> Runs:
    rng = np.random.default_rng(len(scores))
    influence_SN = rng.normal(size=(len(scores), examples))
    return Runs(np.array(scores), influence_SN - influence_SN.mean(1, keepdims=True))


FIRST = [runs(0.8, 0.9, examples=4), runs(0.3, 0.5, examples=3)]
SECOND = [runs(0.6, 0.5, examples=4), runs(0.2, 0.1, examples=3)]


def test_a_metric_that_is_better_when_lower_counts_negatively_in_the_mean() -> None:
    assert MEAN.signs == [1.0, -1.0]
    assert ONLY_ERROR.signs == [1.0]
    accuracy, error = MEAN.of(FIRST)
    assert accuracy.scores_S.tolist() == [0.8, 0.9]
    assert error.scores_S.tolist() == [-0.3, -0.5]
    assert np.array_equal(error.influence_SN, -FIRST[1].influence_SN)
    (alone,) = ONLY_ERROR.of(FIRST)
    assert alone.scores_S.tolist() == [0.3, 0.5]


def test_the_range_of_a_mean_is_the_mean_of_the_ranges() -> None:
    low, high = ERROR.range
    assert ONLY_ERROR.range == (low, high)
    assert MEAN.range == pytest.approx(((0 - high) / 2, (1 - low) / 2))
    assert MEAN.examples == 7


def test_paired_runs_are_one_group_of_differences() -> None:
    (group,) = Pair("new", "old", (FIRST, SECOND), paired=True).groups(MEAN)
    assert group[0].scores_S.tolist() == pytest.approx([0.2, 0.4])
    assert group[1].scores_S.tolist() == pytest.approx([-0.1, -0.4])


def test_runs_without_common_seeds_are_two_groups_of_opposite_sign() -> None:
    first, second = Pair("new", "old", (FIRST, SECOND), paired=False).groups(MEAN)
    assert first[0].scores_S.tolist() == [0.8, 0.9]
    assert second[0].scores_S.tolist() == [-0.6, -0.5]
    assert second[1].scores_S.tolist() == [0.2, 0.1]  # twice turned round: the reference, and a lower error is better
    assert np.array_equal(second[0].influence_SN, -SECOND[0].influence_SN)


@pytest.mark.parametrize("paired", [False, True])
def test_the_contributions_of_examples_average_to_the_difference(paired: bool) -> None:
    parts = Pair("new", "old", (FIRST, SECOND), paired).parts(MEAN)
    assert [len(part) for part in parts] == [4, 3]
    assert [part.mean() for part in parts] == pytest.approx([0.85 - 0.55, -0.4 + 0.15])
