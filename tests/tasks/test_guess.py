"""Guesses are right for common kinds of files."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import openpyxl
import pytest

from polytask.settings import TaskSpec
from polytask.tasks.guess import guess_task
from polytask.types import UserError

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
    assert guess.spec == TaskSpec("x", "classes", ("sentence",), "sentiment", train, dev, delimiter="tab")
    assert guess.reasons == [
        "text: column 'sentence', 31 characters on average",
        "label: column 'sentiment', by its name; 5 different integers in 100 rows (0, 1, 2, 3, 4): classes",
        "delimiter: tab",
        f"dev: {dev}, found next to it",
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


def num_calls(work: Callable[[], object]) -> int:
    """How many functions are called, those written in C too."""
    calls = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls


def test_work_grows_in_proportion_to_the_columns(table: Table) -> None:
    calls = []
    for count in (200, 800):
        rows: list[list[object]] = [[f"{LONG} {i + j}" for j in range(count)] + [i % 2] for i in range(6)]
        file = table(f"{count}.csv", [*(f"words {j} here" for j in range(count)), "label"], rows)
        calls.append(num_calls(lambda file=file: guess_task("x", file)))  # type: ignore[misc]
    assert calls[1] < 5 * calls[0]


def test_other_labels_of_the_file_are_mentioned(table: Table) -> None:
    rows: list[list[object]] = [[f"{LONG} {i}", i % 3, "ab"[i % 2]] for i in range(60)]
    guess = guess_task("x", table("x.csv", ["text", "sentiment", "topic"], rows))
    assert "('topic' could be the label of another task)" in guess.reasons[1]


def test_the_range_covers_rows_after_the_first_thousand_and_the_dev_file(table: Table) -> None:
    rows: list[list[object]] = [[f"{LONG} {i}", 1 + i % 10 / 10] for i in range(1100)]
    train = table("s-train.csv", ["text", "score"], [*rows, ["late", 4.2], ["broken", "x"]])
    table("s-dev.csv", ["text", "score"], [["low", -0.5]])
    assert guess_task("s", train).spec.range == (-1.0, 5.0)


def test_files_without_text_or_label(table: Table) -> None:
    unlabelled = guess_task("x", table("x.csv", ["id", "text"], [[i, f"{LONG} {i}"] for i in range(50)]))
    assert (unlabelled.spec.label, unlabelled.spec.text) == (None, ("text",))
    assert unlabelled.reasons[1].startswith("label: not found")
    without_text = guess_task("x", table("y.csv", ["id", "label"], [[i, i % 2] for i in range(50)]))
    assert (without_text.spec.label, without_text.spec.text) == ("label", ())
    assert without_text.reasons[0].startswith("text: not found")


def test_constant_and_date_columns_are_never_the_label(table: Table) -> None:
    rows: list[list[object]] = [[f"{LONG} {i}", "en", f"2024-05-{1 + i % 5:02}", i % 7, "same"] for i in range(60)]
    guess = guess_task("x", table("x.csv", ["text", "type", "created", "month", "label"], rows))
    assert guess.spec.label is None
    assert "a single value or with dates are never chosen: 'type', 'created', 'month', 'label'" in guess.reasons[1]


def test_a_column_named_like_the_task_is_preferred(table: Table) -> None:
    rows: list[list[object]] = [[f"{LONG} {i}", "ab"[i % 2], "cde"[i % 3], "fg"[i % 2]] for i in range(60)]
    file = table("x.csv", ["text", "label", "Team", "is_urgent"], rows)
    assert [guess_task(task, file).spec.label for task in ("team", "urgent", "mood")] == ["Team", "is_urgent", "label"]
    assert "named like the task 'team'" in guess_task("team", file).reasons[1]
    # What is named like another task of the same file is left to that one, and what has been chosen before.
    assert guess_task("mood", file, others=["label"]).spec.label == "is_urgent"
    assert guess_task("mood", file, others=["label"], taken=["is_urgent"]).spec.label == "Team"


def test_hundreds_of_classes_are_no_text(table: Table) -> None:
    """Two columns of words are not a pair of texts if one is called a label and its names repeat."""
    rows: list[list[object]] = [[f"{LONG} {i}", f"ask for {i % 150}"] for i in range(900)]
    for task in ("x", "skill"):
        guess = guess_task(task, table("x.csv", ["text", "intent" if task == "x" else "skill"], rows))
        assert (guess.spec.kind, guess.spec.text) == ("classes", ("text",))
        assert "150 different names in 900 rows" in guess.reasons[1]


def test_numbers_that_are_written_in_another_way_are_pointed_out(table: Table) -> None:
    few = table("few.csv", ["text", "label"], [[f"{LONG} {i}", f"{i % 4},5"] for i in range(60)], ";")
    reason = guess_task("x", few).reasons[1]
    assert "(for scores, correct the file: numbers must be written like 1234.5); 4 different names" in reason
    many = table(
        "many.csv", ["text", "price", "day"], [[f"{LONG} {i}", f"1.{i + 100},50 €", "1.2.24"] for i in range(60)]
    )
    guess = guess_task("x", many)
    assert guess.spec.label is None
    assert guess.reasons[1].endswith("; numbers must be written like 1234.5, and are not in 'price'")


def test_columns_that_are_given(table: Table) -> None:
    rows: list[list[object]] = [[f"{LONG} {i}", f"b {LONG} {i}", i % 3, i % 2, "en"] for i in range(60)]
    file = table("x.csv", ["subject", "body, long", "label", "other", "language"], rows)
    spec = guess_task("t", file, label="other", text=["body", " long"]).spec
    assert (spec.text, spec.label, spec.kind) == (("body, long",), "other", "yes_no")
    assert guess_task("t", file, text=["subject"]).spec.text == ("subject",)
    for options, message in [
        ({"label": "lable"}, "no column 'lable'; its columns are: subject, .* did you mean 'label'"),
        ({"text": ["subjct"]}, "no column 'subjct'; .* did you mean 'subject'"),
        ({"text": ["subject", "label", "subject"]}, "must be one column, or up to 8 different columns"),
        ({"text": ["subject"], "label": "subject"}, "column 'subject' is given both as text and as label of task t"),
        (
            {"label": "language"},
            "column 'language': a label must have two or more different values, found 'en' in every row",
        ),
    ]:
        with pytest.raises(UserError, match=rf"x\.csv.*{message}"):
            guess_task("t", file, **options)  # type: ignore[arg-type]


def test_how_the_file_is_read_is_kept_if_dev_is_read_the_same_way(tmp_path: Path) -> None:
    table = "text;label\n" + "".join(f"très bon numéro {i};{'ab'[i % 2]}\n" for i in range(40))
    train, dev = tmp_path / "x-train.csv", tmp_path / "x-dev.csv"
    for encoding, kept in (("cp1252", "cp1252"), ("utf-8", None)):
        train.write_bytes(table.encode("cp1252"))
        dev.write_bytes(table.encode(encoding))
        guess = guess_task("x", str(train))
        assert (guess.spec.dev, guess.spec.encoding, guess.spec.delimiter) == (str(dev), kept, "semicolon")
        assert guess.reasons[2].startswith("encoding: read as Windows-1252, a guess")
    with pytest.raises(UserError, match=r"none\.csv: no such file"):
        guess_task("x", str(train), dev="none.csv")


def test_sheets_of_a_workbook(tmp_path: Path) -> None:
    book = openpyxl.Workbook()
    assert book.active is not None
    book.active.title = "test"
    for title in ("Train", "dev"):
        book.create_sheet(title)
    for sheet in book:
        for row in [["text", "label"], *([f"{LONG} {i}", "ab"[i % 2]] for i in range(40))]:
            sheet.append(row)
    book.save(tmp_path / "book.xlsx")
    file = str(tmp_path / "book.xlsx")
    guess = guess_task("x", file)
    assert guess.spec.dev == f"{file}#dev"  # not the first sheet, which is the training sheet here
    assert guess.reasons[2].startswith("sheet: 'test', the first one; to read another, use ")
    assert guess_task("x", f"{file}#Train").spec.dev == f"{file}#dev"


def test_a_missing_header_is_asked_about(table: Table) -> None:
    rows: list[list[object]] = [[f"{LONG} {i}", ["good", "bad"][i % 2]] for i in range(60)]
    assert "is the header missing?" in guess_task("x", table("x.csv", ["a first text", "good"], rows)).reasons[1]
    assert "is the header missing?" not in guess_task("x", table("x.csv", ["text", "mood"], rows)).reasons[1]


def test_a_third_text_next_to_a_pair_is_pointed_out(table: Table) -> None:
    rows: list[list[object]] = [[f"{LONG} a {i}", f"{LONG} b {i}", f"{LONG} c {i}", i % 2] for i in range(60)]
    guess = guess_task("x", table("x.csv", ["question", "answer", "origin", "label"], rows))
    assert guess.spec.text == ("question", "answer")
    assert guess.reasons[0].endswith("; if more texts belong to them ('origin'), name all with --text")


# --- several classes per row ------------------------------------------------------------------------------------------
SETS = [["late", "broken"], ["late"], ["wrong size"], [], ["broken", "wrong size"], ["late"]]


@pytest.mark.parametrize("mark", ["|", ";", ","])
def test_names_between_separators_are_several_classes(table: Table, mark: str) -> None:
    rows: list[list[object]] = [[f"{LONG} {i}", mark.join(SETS[i % 6])] for i in range(60)]
    train = table("train.csv", ["text", "topics"], rows)
    guess = guess_task("x", train)
    assert (guess.spec.kind, guess.spec.label, guess.spec.separator) == ("multilabel", "topics", mark)
    assert guess.spec.text == ("text",)
    names = "(late, broken, wrong size): multilabel"
    assert f"3 different names separated by '{mark}' in 50 rows {names}" in guess.reasons[1]


FLAGS: list[list[object]] = [[f"{LONG} {i}", i % 2, i // 2 % 2, i % 3] for i in range(60)]


def test_columns_of_0_and_1_are_several_classes_if_they_are_given(table: Table) -> None:
    train = table("x.csv", ["text", "late", "broken", "weeks"], FLAGS)
    guess = guess_task("x", train, label=["late", " broken"])
    assert (guess.spec.kind, guess.spec.label, guess.spec.text) == ("multilabel", ("late", "broken"), ("text",))
    assert guess.reasons[1] == "label: columns 'late', 'broken', as given; each is a class: multilabel"
    assert guess_task("x", train, label=["late", "broken"], text=["text"]).spec.text == ("text",)
    with pytest.raises(UserError, match=r"x\.csv, column 'weeks': several label columns are .* found '2'; pass one"):
        guess_task("x", train, label=["late", "weeks"])
    with pytest.raises(UserError, match="no column 'lat'"):
        guess_task("x", train, label=["lat", "broken"])


def test_columns_of_0_and_1_are_pointed_out(table: Table) -> None:
    train = table("x.csv", ["text", "late", "broken", "weeks"], FLAGS)
    hint = "for one task whose classes are columns of 0 and 1, pass --label x=late,broken"
    assert guess_task("x", train).reasons[1].endswith(hint)
    for guess in (guess_task("x", train, label="late"), guess_task("x", train, others=["broken"])):
        assert (guess.spec.kind, guess.spec.label) == ("yes_no", "late")
        assert hint not in guess.reasons[1]


def test_columns_of_true_and_false_are_pointed_out_too(table: Table) -> None:
    rows = [[f"the parcel of row {n}", str(n % 2 == 0), str(n % 3 == 0)] for n in range(30)]  # pandas.get_dummies
    train = table("x.csv", ["text", "late", "broken"], rows)
    assert guess_task("x", train).reasons[1].endswith("pass --label x=late,broken")
    assert guess_task("x", train, label=["late", "broken"]).spec.kind == "multilabel"


def test_lists_are_several_classes(tmp_path: Path, table: Table) -> None:
    lines = [json.dumps({"text": f"{LONG} {i}", "flags": SETS[i % 6]}) for i in range(60)]
    (tmp_path / "train.jsonl").write_text("\n".join(lines) + "\n")
    of_lines = guess_task("x", str(tmp_path / "train.jsonl"))
    rows: list[list[object]] = [[f"{LONG} {i}", json.dumps(SETS[i % 6])] for i in range(60)]
    of_csv = guess_task("x", table("t.csv", ["text", "flags"], rows))
    for guess in (of_lines, of_csv):
        assert (guess.spec.kind, guess.spec.label, guess.spec.separator) == ("multilabel", "flags", None)
        assert "in lists" in guess.reasons[1]


@pytest.mark.parametrize(
    "values",
    [
        [f"{LONG}, {i}, and more, {i * 7}" for i in range(60)],  # texts with commas
        [["Paris, France", "Rome, Italy", "Bonn, Germany"][i % 3] for i in range(60)],  # always the same pairs
        [["good", "bad"][i % 2] for i in range(60)],
        [["3,5", "2,0", "4,5", "1,0"][i % 4] for i in range(60)],  # decimal commas
        [f"tag{i},tag{i + 1}" for i in range(60)],  # names that do not repeat
    ],
)
def test_other_columns_are_not_several_classes(table: Table, values: list[str]) -> None:
    rows: list[list[object]] = [[f"{LONG} {i}", value] for i, value in enumerate(values)]
    assert guess_task("x", table("train.csv", ["text", "label"], rows)).spec.kind != "multilabel"
