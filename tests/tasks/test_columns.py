"""Ids, texts and labels are recognized by their names and first values."""

from collections.abc import Callable

import pytest

from polytask.tasks.columns import LABEL_NAMES, TEXT_NAMES, Column, columns_of, first_pair, likeness, rank
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
    many = [f"class {i % 150}" for i in range(300)]
    assert Column("intent", many).could_be_named_label
    assert not Column("intent", many[:299]).could_be_named_label  # some of the classes have a single row
    assert not Column("question", many).could_be_named_label  # the name of a text


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
    assert first_pair([a, b]) == ((0, 1) if pair else None)


def test_the_first_pair_of_many_names() -> None:
    assert first_pair(["x", "query", "text1", "passage", "text2"]) == (1, 3)
    assert first_pair(["b", "q1", "text_b", "q2", "text_a"]) == (1, 3)
    assert first_pair([]) is None


class Counted(str):
    """A name that counts how often it is compared with another one."""

    __slots__ = ()
    comparisons = 0

    def __eq__(self, other: object) -> bool:
        Counted.comparisons += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


def test_names_are_compared_a_few_times_each(write: Write) -> None:
    compared = []
    for count in (500, 2_000):
        names = [Counted(f"column {i} of words") for i in range(count)]
        source = open_source(write("x.csv", ",".join(names) + "\n" + "\n".join([",".join(["some words"] * count)] * 3)))
        vars(source)["columns"] = tuple(names)
        Counted.comparisons = 0
        assert len(list(source.rows(names[::-1]))) == 3
        compared.append(Counted.comparisons)
    assert compared[1] <= 4 * compared[0] + 4 * 2_000


def test_fewer_rows_of_a_file_with_many_columns(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polytask.tasks.columns.CELLS", 100)
    table = "a,b,c,d,e\n" + "".join(f"{i},{i},{i},{i},{i}\n" for i in range(50))
    assert all(len(column.values) == 20 for column in columns_of(open_source(write("x.csv", table))))


def test_never_labels() -> None:
    assert not Column("label", ["same"] * 50).could_be_named_label
    assert not Column("label", [f"name {i}" for i in range(50)]).could_be_named_label
    assert not Column("class", [f"word{i}" for i in range(50)]).could_be_named_label
    assert not Column("class", [str(i) for i in range(50)]).could_be_named_label
    assert not Column("type", [f"2024-05-{1 + i % 3:02}" for i in range(50)]).could_be_named_label
    assert Column("score", [f"{i}.5" for i in range(50)]).could_be_named_label  # scores may all be different


def test_a_column_that_is_sorted_is_not_constant(write: Write) -> None:
    rows = "text 1,neg,en\n" * 1500 + "text 2,pos,en\n" * 3 + "text 3,pos\ntext 4,neutral,en\n"
    _, label, language = columns_of(open_source(write("x.csv", f"text,label,language\n{rows}")))
    assert (label.different, label.values[1000:]) == (3, ["pos", "neutral"])
    assert language.is_constant
    assert len(language.values) == 1000


@pytest.mark.parametrize(
    ("name", "task", "found"),
    [
        ("topic", "topic", 0),
        ("Topics", "topic", 0),
        ("ticketTopic", "ticket-topic", 0),
        ("is_urgent", "urgent", 1),
        ("isUrgent", "urgent", 1),
        ("Urgent?", "urgent", 0),
        ("topic", "ticket-topic", 2),
        ("topic_confidence", "topic", None),
        ("utopic", "topic", None),
        ("", "topic", None),
    ],
)
def test_names_like_a_task(name: str, task: str, found: int | None) -> None:
    assert likeness(name, task) == found


def test_columns_hold_what_is_not_empty_as_text(write: Write) -> None:
    rows = '{"a": "x", "b": 1, "c": null}\n{"a": " ", "b": NaN, "c": [1, [2]]}\n{oops\n{"b": true, "c": ["d"]}\n'
    columns = columns_of(open_source(write("x.jsonl", rows)))
    assert columns == [Column("a", ["x"], 2), Column("b", ["1", "True"], 1), Column("c", ['["d"]'], 1)]


def test_a_file_without_one_readable_row(write: Write) -> None:
    with pytest.raises(UserError, match=r"x\.csv: none of the first 1,000 rows is valid"):
        columns_of(
            open_source(
                write("x.csv", "a,b\n1\n2\n"),
            )
        )
