"""Guesses are right on the shapes of files people have, and one file becomes two without a text in both."""

import csv
from pathlib import Path

import pytest

from polytask.tasks.guess import guess_task, split_file
from polytask.tasks.reading import open_source
from polytask.types import TaskSpec, UserError

LONG = "a text of some words, number"


def write(folder: Path, name: str, header: list[str], rows: list[list[object]], delimiter: str = ",") -> str:
    with (folder / name).open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter=delimiter)
        writer.writerows([header, *rows])
    return str(folder / name)


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


def test_an_export_of_pandas_with_index_id_and_five_whole_numbers(tmp_path: Path) -> None:
    rows: list[list[object]] = [[i, f"{i:x}abc{i * 7919:x}", f"{LONG} {i}", i % 5] for i in range(100)]
    train = write(tmp_path, "ids-x-train.csv", ["", "id", "sentence", "sentiment"], rows, "\t")
    dev = write(tmp_path, "ids-x-dev.csv", ["", "id", "sentence", "sentiment"], rows[:5], "\t")
    guess = guess_task("x", train)
    assert guess.spec == TaskSpec("x", "classes", ("sentence",), "sentiment", train, dev)
    assert guess.reasons == [
        "text: column 'sentence', 31 characters on average",
        "label: column 'sentiment', by its name; 5 different whole numbers in 100 rows (0, 1, 2, 3, 4): classes",
        f"dev: {dev}, found beside it",
    ]


def test_a_sibling_without_the_label_is_not_taken_for_dev(tmp_path: Path) -> None:
    rows: list[list[object]] = [[f"{LONG} {i}", "ab"[i % 2]] for i in range(40)]
    train = write(tmp_path, "train.csv", ["text", "label"], rows)
    write(tmp_path, "dev.csv", ["text"], [[LONG]])
    assert not guess_task("x", train).has_dev
    validation = write(tmp_path, "validation.csv", ["text", "label"], rows)
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
def test_shapes_of_files(tmp_path: Path, header, row, kind, text, label) -> None:  # type: ignore[no-untyped-def]
    spec = guess_task("x", write(tmp_path, "x.csv", header, [row(i) for i in range(90)])).spec
    assert (spec.kind, spec.text, spec.label) == (kind, text, label)


def test_other_labels_of_the_file_are_mentioned(tmp_path: Path) -> None:
    rows: list[list[object]] = [[f"{LONG} {i}", i % 3, "ab"[i % 2]] for i in range(60)]
    guess = guess_task("x", write(tmp_path, "x.csv", ["text", "sentiment", "topic"], rows))
    assert "('topic' could be another task's)" in guess.reasons[1]


def test_the_range_covers_rows_after_the_first_thousand_and_the_dev_file(tmp_path: Path) -> None:
    rows: list[list[object]] = [[f"{LONG} {i}", 1 + i % 10 / 10] for i in range(1100)]
    train = write(tmp_path, "s-train.csv", ["text", "score"], [*rows, ["late", 4.2], ["broken", "x"]])
    write(tmp_path, "s-dev.csv", ["text", "score"], [["low", -0.5]])
    assert guess_task("s", train).spec.range == (-1.0, 5.0)


@pytest.mark.parametrize(
    ("header", "row", "message"),
    [
        (["id", "text"], lambda i: [i, f"{LONG} {i}"], "no column looks like a label .*its columns are: id, text"),
        (["id", "label"], lambda i: [i, i % 2], "no column looks like text; its columns are: id, label"),
    ],
)
def test_files_without_text_or_label(tmp_path: Path, header, row, message: str) -> None:  # type: ignore[no-untyped-def]
    train = write(tmp_path, "x.csv", header, [row(i) for i in range(50)])
    with pytest.raises(UserError, match=f"x.csv: {message}"):
        guess_task("x", train)


# --- split_file -------------------------------------------------------------------------------------------------------


def rows_of(file: Path) -> list[list[str]]:
    source = open_source(str(file))
    return [row[1] for row in source.rows(source.columns) if isinstance(row, tuple)]


def spec_of(train: str, kind: str = "yes_no", text: tuple[str, ...] = ("text",)) -> TaskSpec:
    return TaskSpec("mine", kind, text, "label", train, "")  # type: ignore[arg-type]


def test_parts_hold_every_row_once_and_no_text_is_in_both(tmp_path: Path) -> None:
    rows: list[list[object]] = [[i, f"{'Text' if i % 2 else 'text '} {i % 70}", i % 2] for i in range(200)]
    parts = split_file(spec_of(write(tmp_path, "x.tsv", ["id", "text", "label"], rows, "\t")), tmp_path / "out")
    train, dev = rows_of(parts.train), rows_of(parts.dev)
    assert (parts.train.name, parts.dev.name) == ("mine-train.csv", "mine-dev.csv")
    assert sorted(train + dev, key=lambda row: int(row[0])) == [[str(value) for value in row] for row in rows]
    plain = [{" ".join(row[1].lower().split()) for row in part} for part in (train, dev)]
    assert not plain[0] & plain[1]
    assert 35 <= len(dev) <= 40
    assert [int(row[0]) for row in train] == sorted(int(row[0]) for row in train)


def test_the_split_is_the_same_every_time_and_another_with_another_seed(tmp_path: Path) -> None:
    spec = spec_of(write(tmp_path, "x.csv", ["text", "label"], [[f"text {i}", i % 2] for i in range(50)]))
    first = split_file(spec, tmp_path / "out").dev.read_bytes()
    assert split_file(spec, tmp_path / "out").dev.read_bytes() == first
    assert split_file(spec, tmp_path / "other", seed=1).dev.read_bytes() != first
    assert len(rows_of(split_file(spec, tmp_path / "half", share=0.5).dev)) == 25
    with pytest.raises(UserError, match=r"mine-train.csv: is there already, with other content"):
        split_file(spec, tmp_path / "out", seed=1)


def test_rows_of_pairs_that_share_a_text_stay_together(tmp_path: Path) -> None:
    rows: list[list[object]] = [[f"a{i}", f"b{i}", 0] for i in range(40)] + [[f"b{i}", f"c{i}", 1] for i in range(40)]
    parts = split_file(spec_of(write(tmp_path, "x.csv", ["a", "b", "label"], rows), text=("a", "b")), tmp_path / "out")
    train, dev = ({text for row in rows_of(part) for text in row[:2]} for part in (parts.train, parts.dev))
    assert not train & dev
    assert (len(rows_of(parts.dev)), parts.kept_together) == (16, "texts")


def test_when_all_pairs_hang_together_whole_pairs_stay_together(tmp_path: Path) -> None:
    chain: list[list[object]] = [[f"t{i}", f"t{i + 1}", i % 2] for i in range(40)]
    swapped = [[b, a, label] for a, b, label in chain]
    source = write(tmp_path, "x.csv", ["a", "b", "label"], chain + swapped)
    parts = split_file(spec_of(source, text=("a", "b")), tmp_path / "out")
    train, dev = ({frozenset(row[:2]) for row in rows_of(part)} for part in (parts.train, parts.dev))
    assert not train & dev
    assert (len(rows_of(parts.dev)), parts.kept_together) == (16, "pairs")


def test_a_class_is_never_in_dev_alone(tmp_path: Path) -> None:
    rows: list[list[object]] = [[f"text {i}", f"class {i}" if i < 10 else "common"] for i in range(60)]
    parts = split_file(spec_of(write(tmp_path, "x.csv", ["text", "label"], rows), "classes"), tmp_path / "out")
    train, dev = ({row[1] for row in rows_of(part)} for part in (parts.train, parts.dev))
    assert dev <= train
    assert len(train) == 11


def test_ragged_rows_are_counted_and_odd_text_survives(tmp_path: Path) -> None:
    content = "".join(f'"text ""{i}"",\nline two",{i % 2}\n' for i in range(30))
    (tmp_path / "x.csv").write_text(f"text,label\n{content}ragged,1,2\n")
    parts = split_file(spec_of(str(tmp_path / "x.csv")), tmp_path / "out")
    texts = {row[0] for part in (parts.train, parts.dev) for row in rows_of(part)}
    assert parts.dropped == 1
    assert texts == {f'text "{i}",\nline two' for i in range(30)}


def test_too_few_rows_to_split(tmp_path: Path) -> None:
    source = write(tmp_path, "x.csv", ["text", "label"], [["same", 1], ["same", 0]])
    with pytest.raises(UserError, match=r"x\.csv: 2 rows are too few, or too much alike"):
        split_file(spec_of(source), tmp_path / "out")
    assert not (tmp_path / "out").exists()
