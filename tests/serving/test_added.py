"""The columns that predictions add: their names never meet, and their digits fit the task."""

import math

import pytest

from polytask.serving.added import AddedColumns, check_names
from polytask.types import YES_NO, LabelSpace, Prediction, UserError


@pytest.mark.parametrize(
    ("low", "high", "score", "written"),
    [
        (0, 1, 0.123456789, 0.1235),
        (0, 5, 3.14159265, 3.1416),
        (-100, 100, 87.654321, 87.65),
        (0, 1e-6, 1.23456789e-7, 1.235e-7),
        (0, 1e9, 123456789.123, 123456789.0),
    ],
)
def test_scores_have_the_digits_of_their_range(low: float, high: float, score: float, written: float) -> None:
    columns = AddedColumns("t", LabelSpace("score", low=low, high=high), "top")
    assert columns.values(Prediction("t", score, tokens=9)) == {
        "predicted_t": written,
        "tokens_t": 9,
        "truncated_t": False,
    }


def test_small_probabilities_stay_above_zero() -> None:
    columns = AddedColumns("t", YES_NO, "all")
    small = 1.23456789e-9
    assert columns.values(Prediction("t", "no", {"no": 1 - small, "yes": small}, 300, truncated=True)) == {
        "predicted_t": "no",
        "probability_t": 1.0,
        "probability_t_no": 1.0,
        "probability_t_yes": 1.23457e-9,
        "tokens_t": 300,
        "truncated_t": True,
    }
    assert math.log(columns.values(Prediction("t", "no", {"no": 1.0, "yes": small}))["probability_t_yes"]) < 0  # type: ignore[arg-type]


@pytest.mark.parametrize("probabilities", ["top", "all", "none"])
def test_no_prediction_has_the_same_columns(probabilities: str) -> None:
    columns = AddedColumns("t", YES_NO, probabilities)
    answer = columns.values(Prediction("t", "yes", {"no": 0.25, "yes": 0.75}))
    assert list(answer) == list(columns.types)
    assert columns.values(Prediction("t", None)) == dict.fromkeys(columns.types)


def test_tasks_whose_columns_have_one_name() -> None:
    a = AddedColumns("a", LabelSpace("classes", classes=("b", "b_c")), "all")
    ab = AddedColumns("a_b", LabelSpace("classes", classes=("c", "d")), "all")
    with pytest.raises(UserError, match=r"task a's column and task a_b's would both be called 'probability_a_b'"):
        check_names("in.csv", ["text"], {"a": a, "a_b": ab})
    check_names("in.csv", ["text"], {"a": a})
    check_names("in.csv", ["text"], {"a": AddedColumns("a", a.labels, "top"), "a_b": ab})
