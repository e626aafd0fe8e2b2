"""The predictor: one text or many, in order, in flat memory, on the device asked for."""

import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pandas
import polars
import pyarrow
import pytest

from polytask import Finished, Prediction, UserError, load
from polytask.serving import examples as module


def test_forms_of_asking(tiny_run: Finished) -> None:
    model = load(tiny_run.folder)
    assert model.tasks == ("opinion", "question", "similarity")
    (one,) = model.predict("opinion", "fine")
    for again in model.predict("opinion", ["fine", "fine"]):
        assert again.label == one.label
        assert again.probabilities == pytest.approx(one.probabilities, abs=1e-5)
    (pair,) = model.predict("question", "is it?", "is it not?")
    assert model.predict("question", [("is it?", "is it not?")]) == [pair]
    assert pair.label in ("yes", "no")
    assert model.predict("opinion", []) == []


def test_chunks_keep_the_order_and_read_no_further_than_needed(
    tiny_run: Finished, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHUNK", 4)
    model = load(tiny_run.folder)
    texts = ["word " * (i % 7 + 1) for i in range(10)]
    read = 0

    def examples() -> Iterator[tuple[str, ...]]:
        nonlocal read
        for text in texts:
            read += 1
            yield (text,)

    stream = model.stream("opinion", examples())
    first = next(stream)
    assert read == 4
    found = [first, *stream]
    assert [p.label for p in found] == [model.predict("opinion", text)[0].label for text in texts]


def test_two_lists_are_pairs(tiny_run: Finished) -> None:
    model = load(tiny_run.folder)
    firsts, seconds = ["is it?", "who is it?", "why"], ["is it not?", "how much does it cost?", "because"]
    found = model.predict("similarity", firsts, seconds)
    assert found == model.predict("similarity", list(zip(firsts, seconds, strict=True)))
    one_by_one = [model.predict("similarity", a, b)[0].label for a, b in zip(firsts, seconds, strict=True)]
    assert [p.label for p in found] == pytest.approx(one_by_one, abs=1e-4)
    assert len({p.label for p in found}) == 3
    assert model.predict_tasks(firsts, seconds, ["similarity"])["similarity"] == found
    with pytest.raises(UserError, match="text has 3 texts and text2 has 2; both lists must have the same length"):
        model.predict("similarity", firsts, seconds[:2])
    with pytest.raises(UserError, match="found one text and one list"):
        model.predict("similarity", firsts, "is it?")
    with pytest.raises(UserError, match=r"takes 1 text\(s\) per example, found 2"):
        model.predict("opinion", firsts, seconds)


@pytest.mark.parametrize(
    "column", [pandas.Series, polars.Series, np.array, pyarrow.array, lambda texts: pyarrow.table({"a": texts})["a"]]
)
def test_columns_of_tables_are_lists_of_texts(tiny_run: Finished, column: Any) -> None:
    model = load(tiny_run.folder)
    firsts, seconds = ["is it?", "who is it?"], ["is it not?", "because"]
    assert model.predict("similarity", column(firsts), column(seconds)) == model.predict("similarity", firsts, seconds)
    assert model.predict(column(firsts), task="opinion") == model.predict("opinion", firsts)
    assert (model.embed(column(firsts)) == model.embed(firsts)).all()


@pytest.mark.parametrize("chunk", [2, 4096])
def test_examples_without_text_get_no_prediction(
    tiny_run: Finished, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    monkeypatch.setattr(module, "CHUNK", chunk)  # 2: some chunks have no text at all
    model = load(tiny_run.folder)
    texts = ["fine", "", None, " \n\t", math.nan, "bad", pandas.NA, "good"]
    found = model.predict("opinion", texts)
    assert [p.label is None for p in found] == [False, True, True, True, True, False, True, False]
    assert found[1] == Prediction("opinion", None)
    alone = model.predict("opinion", ["fine", "bad", "good"])
    for with_gaps, without in zip([found[0], found[5], found[7]], alone, strict=True):
        assert with_gaps.label == without.label
        assert with_gaps.probabilities == pytest.approx(without.probabilities, abs=1e-5)
    assert model.predict("opinion", pandas.Series(texts)) == found
    assert model.predict("opinion", None) == model.predict("opinion", "") == [Prediction("opinion", None)]
    pairs = model.predict_tasks([("a", "b"), ("a", ""), (None, "b")])
    for task in ("question", "similarity"):
        assert [p.label is None for p in pairs[task]] == [False, True, True]
    with pytest.raises(UserError, match=r"example 1 \(counted from 0\).*the text is empty"):
        model.predict("opinion", texts, strict=True)
    with pytest.raises(UserError, match="the text is empty"):
        model.predict_tasks(["a"], [""], strict=True)


@pytest.mark.parametrize("table", [pandas.DataFrame({"text": ["fine"]}), {"text": ["fine"]}, [{"text": "fine"}]])
def test_a_table_in_place_of_texts_is_refused(tiny_run: Finished, table: Any) -> None:
    model = load(tiny_run.folder)
    expected = r"expected texts, found a (DataFrame|dict); pass one column of a table, as in table\['text'\]"
    for ask in (partial(model.predict, "opinion"), model.embed, model.predict_tasks):
        with pytest.raises(UserError, match=expected):
            ask(table)


def test_a_strange_text_still_gets_an_answer(tiny_run: Finished) -> None:
    model = load(tiny_run.folder)
    for text in ("\u200b", "x" * 20_000, "[CLS] [SEP]", "\ud800", "日本語"):
        assert model.predict("opinion", text)[0].label is not None
