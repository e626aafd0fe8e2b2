"""Ids, texts and labels are told apart by their names and their first values."""

import random
from collections.abc import Callable
from itertools import combinations

import pytest

from polytask.tasks.columns import LABEL_NAMES, TEXT_NAMES, Column, columns_of, first_pair_by_name, pair_by_name, rank
from polytask.tasks.reading import open_source
from polytask.types import UserError

Write = Callable[[str, str | bytes], str]


@pytest.mark.parametrize("name", ["", "id", "ID", "doc_id", "userId", "idx", "Unnamed: 0", "qid1", "row"])
def test_ids_by_their_names(name: str) -> None:
    assert Column(name, ["a", "b"]).is_id


@pytest.mark.parametrize("name", ["text", "valid", "idea", "paid", "liquid"])
def test_no_ids_by_their_names(name: str) -> None:
    assert not Column(name, ["a", "b"]).is_id


def test_ids_by_their_values() -> None:
    assert Column("x", [str(i) for i in range(20)]).is_id
    assert Column("x", [f"a{i}" for i in range(20)]).is_id
    assert not Column("x", [str(i) for i in range(19)]).is_id  # too few to tell
    assert not Column("x", [f"word {i}" for i in range(20)]).is_id
    assert not Column("x", [f"{i}.5" for i in range(20)]).is_id


def test_numbers_lengths_and_different_values() -> None:
    column = Column("x", ["1", "1.0", "2.5"])
    assert column.numbers == [1.0, 1.0, 2.5]
    assert column.different == 2
    assert column.mean_length == pytest.approx(7 / 3)
    assert Column("x", ["1", "nan"]).numbers == []
    assert Column("x", ["1", "one"]).numbers == []
    assert Column("x", []).mean_length == 0


def test_texts_and_labels() -> None:
    assert Column("x", ["a text", "another"]).is_text
    assert not Column("x", ["the same", "the same"]).is_text
    assert not Column("x", ["1", "2"]).is_text
    assert Column("x", ["good", "bad"] * 5).could_be_label
    assert not Column("x", ["a", "b", "c", "d"]).could_be_label  # different in nearly every row
    assert Column("x", ["0.5", "0.25", "0.75", "1.25"]).could_be_label
    assert not Column("x", ["long " * 10] * 4).could_be_label
    assert not Column("x", []).could_be_label
    assert Column("class_id", ["1", "2"]).could_be_named_label
    assert not Column("class", ["one text", "two texts", "three texts"]).could_be_named_label


def test_the_rank_of_a_name() -> None:
    assert rank("label", LABEL_NAMES) == 0
    assert rank("Gold-Label", LABEL_NAMES) == 0  # by the one word of it that comes first
    assert rank("target", LABEL_NAMES) == 3
    assert rank("sentence2", TEXT_NAMES) == rank("Sentence", TEXT_NAMES) == 1
    assert rank("review text", TEXT_NAMES) == 0  # the first of the words that is in the list
    assert rank("price", LABEL_NAMES) is None
    assert rank("x y", LABEL_NAMES) is None  # a single letter counts only when it is the whole name


@pytest.mark.parametrize(
    ("a", "b", "pair"),
    [
        ("question1", "question2", True),
        ("sentence_A", "sentence_B", True),
        ("text a", "text b", True),
        ("first_text", "second_text", True),
        ("Premise", "hypothesis", True),
        ("title", "body", False),
        ("a", "b", False),
        ("text", "text", False),
    ],
)
def test_pairs_by_their_names(a: str, b: str, pair: bool) -> None:
    assert pair_by_name(a, b) is pair


def test_columns_hold_what_is_not_empty_as_text(write: Write) -> None:
    rows = '{"a": "x", "b": 1, "c": null}\n{"a": " ", "b": NaN, "c": [1]}\n{oops\n{"b": true}\n'
    columns = columns_of(open_source(write("x.jsonl", rows)))
    assert columns == [Column("a", ["x"]), Column("b", ["1", "True"]), Column("c", [])]


def test_a_file_without_one_readable_row(write: Write) -> None:
    with pytest.raises(UserError, match=r"x\.csv: none of the first 1,000 rows can be read"):
        columns_of(
            open_source(
                write("x.csv", "a,b\n1\n2\n"),
            )
        )


def test_the_first_pair_is_that_of_trying_all() -> None:
    rng = random.Random(0)
    pool = ["text", "text1", "text2", "text_a", "text_b", "first text", "premise", "Premise", "hypothesis", "a", "b"]
    pool += ["question", "answer", "sentence", "query", "document", "note 1", "note-2", "1", "2"]
    for _ in range(300):
        names = rng.sample(pool, rng.randrange(len(pool)))
        tried = [(i, j) for i, j in combinations(range(len(names)), 2) if pair_by_name(names[i], names[j])]
        assert first_pair_by_name(names) == (tried[0] if tried else None)


def test_looking_for_a_pair_takes_a_time_that_grows_with_the_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []
    monkeypatch.setattr("polytask.tasks.columns.pair_by_name", lambda *names: tried.append(names))
    names = [f"column {i}x" for i in range(20_000)]
    assert first_pair_by_name(names) is None
    assert len(tried) <= len(names)
