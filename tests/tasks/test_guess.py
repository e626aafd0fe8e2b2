"""Guesses are right on the shapes of files people have."""

from collections.abc import Callable

import pytest

from polytask.tasks.guess import guess_task
from polytask.types import TaskSpec, UserError

Table = Callable[..., str]

LONG = "a text of some words, number"


@pytest.mark.parametrize(
    ("sample", "kind", "text", "label", "range"),
    [
        ("opinions", "classes", ("text",), "opinion", None),
        ("questions", "yes_no", ("question1", "question2"), "duplicate", None),
        ("similarity", "score", ("sentence1", "sentence2"), "similarity", (0.0, 5.0)),
    ],
)
def test_the_samples(
    sample: str, kind: str, text: tuple[str, ...], label: str, range: tuple[float, float] | None
) -> None:
    guess = guess_task("t", f"sample:{sample}-train")
    expected = (kind, text, label, range, f"sample:{sample}-dev")
    assert (guess.spec.kind, guess.spec.text, guess.spec.label, guess.spec.range, guess.spec.dev) == expected
    assert guess.has_dev


def test_an_export_of_pandas_with_index_id_and_five_whole_numbers(table: Table) -> None:
    rows: list[list[object]] = [[i, f"{i:x}abc{i * 7919:x}", f"{LONG} {i}", i % 5] for i in range(100)]
    train = table("ids-x-train.csv", ["", "id", "sentence", "sentiment"], rows, "\t")
    dev = table("ids-x-dev.csv", ["", "id", "sentence", "sentiment"], rows[:5], "\t")
    guess = guess_task("x", train)
    assert guess.spec == TaskSpec("x", "classes", ("sentence",), "sentiment", train, dev)
    assert guess.reasons == [
        "text: column 'sentence', 31 characters on average",
        "label: column 'sentiment', by its name; 5 different whole numbers in 100 rows (0, 1, 2, 3, 4): classes",
        f"dev: {dev}, found beside it",
    ]


def test_a_sibling_without_the_label_is_not_taken_for_dev(table: Table) -> None:
    rows: list[list[object]] = [[f"{LONG} {i}", "ab"[i % 2]] for i in range(40)]
    train = table("train.csv", ["text", "label"], rows)
    table("dev.csv", ["text"], [[LONG]])
    assert not guess_task("x", train).has_dev
    validation = table("validation.csv", ["text", "label"], rows)
    assert guess_task("x", train).spec.dev == validation


@pytest.mark.parametrize(
    ("header", "row", "kind", "text", "label"),
    [
        (["premise", "hypothesis", "gold_label"], lambda i: [f"{LONG} {i}", f"b {LONG} {i}", "xyz"[i % 3]], "classes",
         ("premise", "hypothesis"), "gold_label"),
        (["id", "sentence_A", "sentence_B", "relatedness", "entailment"],
         lambda i: [i, f"{LONG} {i}", f"b {LONG} {i}", 1 + i % 40 / 10, "AB"[i % 2]], "score",
         ("sentence_A", "sentence_B"), "relatedness"),
        (["question", "kind"], lambda i: [f"{LONG} {i}?", ["HUM", "LOC"][i % 2]], "classes", ("question",), "kind"),
        (["Review Text", "Rating"], lambda i: [f"{LONG} {i}", 1 + i % 5], "classes", ("Review Text",), "Rating"),
        (["title", "body", "topic"], lambda i: [f"title {i}", f"{LONG * 9} {i}", "ab"[i % 2]], "classes",
         ("body",), "topic"),
        (["tweet", "is_valid"], lambda i: [f"{LONG} {i}", ["True", "False"][i % 2]], "yes_no", ("tweet",), "is_valid"),
        (["first", "second", "outcome"], lambda i: [f"{LONG} {i}", f"{LONG} {i + 1}", ["y", "n"][i % 2]], "yes_no",
         ("first", "second"), "outcome"),
        (["text", "topic", "sentiment"], lambda i: [f"word {i}", ["entertainment", "sport"][i % 2], i % 3], "classes",
         ("text",), "sentiment"),
        (["text", "price"], lambda i: [f"{LONG} {i}", i * 1.37], "score", ("text",), "price"),
        (["doc_id", "text", "class_id"], lambda i: [i // 2, f"{LONG} {i}", i % 4], "classes", ("text",), "class_id"),
    ],
)  # fmt: skip
def test_shapes_of_files(table: Table, header, row, kind, text, label) -> None:  # type: ignore[no-untyped-def]
    spec = guess_task("x", table("x.csv", header, [row(i) for i in range(90)])).spec
    assert (spec.kind, spec.text, spec.label) == (kind, text, label)


def test_other_labels_of_the_file_are_mentioned(table: Table) -> None:
    rows: list[list[object]] = [[f"{LONG} {i}", i % 3, "ab"[i % 2]] for i in range(60)]
    guess = guess_task("x", table("x.csv", ["text", "sentiment", "topic"], rows))
    assert "('topic' could be another task's)" in guess.reasons[1]


def test_the_range_covers_rows_after_the_first_thousand_and_the_dev_file(table: Table) -> None:
    rows: list[list[object]] = [[f"{LONG} {i}", 1 + i % 10 / 10] for i in range(1100)]
    train = table("s-train.csv", ["text", "score"], [*rows, ["late", 4.2], ["broken", "x"]])
    table("s-dev.csv", ["text", "score"], [["low", -0.5]])
    assert guess_task("s", train).spec.range == (-1.0, 5.0)


@pytest.mark.parametrize(
    ("header", "row", "message"),
    [
        (["id", "text"], lambda i: [i, f"{LONG} {i}"], "no column looks like a label .*its columns are: id, text"),
        (["id", "label"], lambda i: [i, i % 2], "no column looks like text; its columns are: id, label"),
    ],
)
def test_files_without_text_or_label(table: Table, header, row, message: str) -> None:  # type: ignore[no-untyped-def]
    train = table("x.csv", header, [row(i) for i in range(50)])
    with pytest.raises(UserError, match=f"x.csv: {message}"):
        guess_task("x", train)
