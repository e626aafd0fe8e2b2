"""Tables in memory are predicted: the same kind comes back, with the columns of `predict_file` and the same index."""

from typing import Any

import datasets
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from polytask import Finished, Predictor, UserError, load

ADDED = ("predicted_opinion", "probability_opinion", "tokens_opinion", "truncated_opinion")

TEXTS = ["Great value.", "Broke at once.", None, " "]
COLUMNS = {"id": [1, 2, 3, 4], "text": TEXTS}


@pytest.fixture(scope="module")
def model(tiny_run: Finished) -> Predictor:
    return load(tiny_run.folder)


def expected(model: Predictor) -> list[str | float | None]:
    return [prediction.label for prediction in model.predict("opinion", TEXTS)]


def test_a_frame_of_pandas_keeps_its_index(model: Predictor) -> None:
    frame = pd.DataFrame(COLUMNS, index=["b", "a", "a", "c"])
    before = frame.copy()
    found = model.predict(frame, task="opinion")
    pd.testing.assert_frame_equal(frame, before)
    assert type(found) is pd.DataFrame
    assert list(found.columns) == ["id", "text", *ADDED]
    assert list(found.index) == list(frame.index)
    assert [None if pd.isna(label) else label for label in found["predicted_opinion"]] == expected(model)
    assert found["probability_opinion"].dtype == float
    assert found["probability_opinion"].isna().tolist() == [False, False, True, True]


TABLES: dict[str, Any] = {
    "polars": (lambda: pl.DataFrame(COLUMNS), lambda table: table["predicted_opinion"].to_list()),
    "polars lazy": (lambda: pl.LazyFrame(COLUMNS), lambda table: table.collect()["predicted_opinion"].to_list()),
    "pyarrow": (lambda: pa.table(COLUMNS), lambda table: table["predicted_opinion"].to_pylist()),
    "datasets": (lambda: datasets.Dataset.from_dict(COLUMNS), lambda table: list(table["predicted_opinion"])),
    "list": (lambda: pa.table(COLUMNS).to_pylist(), lambda table: [row["predicted_opinion"] for row in table]),
}


@pytest.mark.parametrize("kind", TABLES)
def test_other_tables_come_back_as_their_kind(kind: str, model: Predictor) -> None:
    make, labels = TABLES[kind]
    table = make()
    found = model.predict(table)
    assert type(found) is type(table)
    assert labels(found) == expected(model)


def test_tables_and_texts_are_told_apart(model: Predictor) -> None:
    rows = [{"text": "fine"}]
    assert model.predict(iter(rows)) == model.predict(rows)
    (one,) = model.predict("opinion", "fine")
    assert model.predict(iter(["fine"]), task="opinion") == [one]
    assert model.predict(["fine"], task="opinion") == model.predict("fine", task="opinion") == [one]
    assert model.predict(task="opinion", text="fine") == [one]
    assert model.predict("opinion", None)[0].label is None
    assert model.predict([], task="opinion") == []
    with pytest.raises(
        UserError, match=r"predict: expected a task and texts, as in predict\('opinion', \['a text'\]\)"
    ):
        model.predict("opinion")


def test_several_tasks_and_other_columns(model: Predictor) -> None:
    frame = pd.DataFrame({"text": ["a", "b"], "question1": ["c", "d"], "question2": ["e", "f"], "x": ["g", "h"]})
    found = model.predict(frame, probabilities="all")
    assert [name for name in found if name.startswith("predicted")] == ["predicted_opinion", "predicted_question"]
    assert found["probability_opinion"].tolist() == found.filter(like="probability_opinion_").max(axis=1).tolist()
    score = model.predict(frame, task="similarity", columns=["text", "x"])["predicted_similarity"]
    assert score.tolist() == pytest.approx(
        [p.label for p in model.predict("similarity", ["a", "b"], ["g", "h"])], abs=1e-3
    )


def test_an_empty_frame_gets_its_columns(model: Predictor) -> None:
    found = model.predict(pd.DataFrame({"text": pd.Series([], dtype=str)}))
    assert list(found.columns) == ["text", *ADDED]
    assert len(found) == 0


@pytest.mark.parametrize(
    ("frame", "options", "message"),
    [
        (pd.DataFrame({"words": ["a"]}), {}, "predict: must have the text columns of a task"),
        (pd.DataFrame({"words": ["a"]}), {"task": "opinion"}, "predict: no column 'text'; its columns are: words"),
        (pd.DataFrame({"text": ["a"]}), {"task": "opinon"}, "did you mean opinion"),
        (pd.DataFrame({"text": ["a"], "predicted_opinion": [1]}), {}, "has a column 'predicted_opinion'"),
        (pd.DataFrame({"text": [["a"]]}), {}, "a list or table; expected text"),
        (pd.DataFrame({"text": ["a", None]}), {"strict": True}, "the text is empty"),
    ],
)
def test_errors(frame: pd.DataFrame, options: dict[str, Any], message: str, model: Predictor) -> None:
    with pytest.raises(UserError, match=message):
        model.predict(frame, **options)
