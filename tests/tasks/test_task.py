"""Reading tasks reports all broken rows of all tasks in one error."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import openpyxl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from polytask.settings import RowSample, TaskSpec
from polytask.tasks.task import read_split, read_tasks
from polytask.text.tokenizer import TextTokenizer
from polytask.types import Example, LabelSpace, UserError

Write = Callable[[str, str | bytes], str]


def message(specs: list[TaskSpec], tokenizer: TextTokenizer, cache: Path) -> str:
    with pytest.raises(UserError) as error:
        read_tasks(specs, tokenizer, cache)
    return str(error.value)


def test_classes_pairs_and_scores(tmp_path: Path, tokenizer: TextTokenizer, opinions: TaskSpec, write: Write) -> None:
    pairs = write("p.jsonl", '{"a": "x y", "b": "z", "same": true}\n{"a": "q", "b": 12, "same": "No"}\n')
    scores = write("s.tsv", "a\tb\tscore\nx\ty\t0\nx\tz\t5\nq\tr\t2.5\n")
    specs = [
        opinions,
        TaskSpec("same", "yes_no", ("a", "b"), "same", pairs, pairs, test=pairs),
        TaskSpec("near", "score", ("b", "a"), "score", scores, scores, range=(0, 5)),
    ]
    classes, same, near = read_tasks(specs, tokenizer, tmp_path / "cache")
    assert classes.labels == LabelSpace("classes", ("9", "10"))
    assert classes.splits["train"].labels.tolist() == [1, 0, 1]
    assert classes.splits["dev"].labels.tolist() == [0, 1]
    assert classes.splits["train"].labels.dtype == np.int64
    assert classes.splits["train"].rows.tolist() == [2, 3, 4]
    assert classes.splits["train"].tokens(0)[0].tolist() == tokenizer.encode(["ab"])[0].tolist()
    assert list(classes.splits) == ["train", "dev"]
    assert list(same.splits) == ["train", "dev", "test"]
    assert same.splits["test"].labels.tolist() == [1.0, 0.0]
    assert same.splits["train"].labels.dtype == np.float32
    assert list(same.splits["train"].examples()) == [Example(("x y", "z"), "yes", 1), Example(("q", "12"), "no", 2)]
    assert near.splits["train"].labels.tolist() == [0.0, 1.0, 0.5]
    assert [example.label for example in near.splits["dev"].examples()] == [0.0, 5.0, 2.5]
    assert [len(text) for text in near.splits["train"].tokens(0)] == [1, 1]
    assert next(near.splits["train"].examples()).texts == ("y", "x")


def test_given_classes_keep_their_order(tmp_path: Path, tokenizer: TextTokenizer, opinions: TaskSpec) -> None:
    spec = TaskSpec(**{**vars(opinions), "classes": ("10", "9", "8")})
    (task,) = read_tasks([spec], tokenizer, tmp_path)
    assert task.labels.classes == ("10", "9", "8")
    assert task.splits["train"].labels.tolist() == [0, 1, 0]
    assert [example.label for example in task.splits["dev"].examples()] == ["9", "10"]


def test_the_faults_of_all_tasks_are_one_error(
    tmp_path: Path, tokenizer: TextTokenizer, opinions: TaskSpec, write: Write
) -> None:
    bad_text = write("text.csv", "text,opinion\n ,9\nfine,9\nfine,\n")
    bad_dev = write("dev.csv", "text,opinion\nx,11\nragged,9,9\n")
    scores = write("scores.csv", "text,score\na,7\nb,high\nc,1\n")
    specs = [
        TaskSpec("one", "classes", ("text",), "opinion", bad_text, bad_text),
        TaskSpec("two", "classes", ("text",), "opinion", opinions.train, bad_dev),
        TaskSpec("three", "score", ("text",), "score", scores, scores, range=(0, 5)),
        TaskSpec("four", "classes", ("txet",), "label", opinions.train, str(tmp_path / "none.csv")),
    ]
    lines = message(specs, tokenizer, tmp_path / "cache").splitlines()
    assert lines == [
        f"{bad_text}: column 'opinion' of task 'one' has only the class '9'; expected two or more classes",
        f"{opinions.train}: no column 'txet'; its columns are: text, opinion; did you mean 'text'?",
        f"{opinions.train}: no column 'label'; its columns are: text, opinion",
        f"{tmp_path / 'none.csv'}: no such file",
        "10 broken rows; correct them, or set `broken_rows: skip` to leave them out:",
        *[f"  {bad_text}, line 2, column 'text': ' ': the text is empty"],
        *[f"  {bad_text}, line 4, column 'opinion': the label is empty"],
        *[f"  {bad_text}, line 2, column 'text': ' ': the text is empty"],
        *[f"  {bad_text}, line 4, column 'opinion': the label is empty"],
        f"  {bad_dev}, line 2, column 'opinion': '11': not among the labels of the training rows; expected 9, 10",
        f"  {bad_dev}, line 3: 3 fields, expected 2 as in the header (read with delimiter comma and quoting minimal)",
        *[
            f"  {scores}, line 2, column 'score': '7': outside the range; expected a number from 0 to 5",
            f"  {scores}, line 3, column 'score': 'high': not a number; expected a number from 0 to 5",
        ]
        * 2,
        "`blank_labels: skip` leaves out rows whose label is empty, and no others",
    ]


def test_many_broken_rows_are_counted_and_the_first_twenty_shown(
    tmp_path: Path, tokenizer: TextTokenizer, opinions: TaskSpec, write: Write
) -> None:
    rows = "".join(f"{'long ' * 50},{i}\n" for i in range(1500))
    train = write("t.csv", f"text,label\ngood,1\n{rows}")
    spec = TaskSpec("t", "yes_no", ("text",), "label", train, train)
    lines = message([spec], tokenizer, tmp_path / "cache").splitlines()
    assert lines[0].startswith("2,996 broken rows;")
    assert len(lines) == 22
    assert lines[-1] == f"  ... and 2,976 more (in all 2,996 in {train})"


def test_no_usable_row_is_an_error_even_when_skipping(tmp_path: Path, tokenizer: TextTokenizer, write: Write) -> None:
    train = write("t.csv", "text,same\n,1\n")
    spec = TaskSpec("t", "yes_no", ("text",), "same", train, train, broken_rows="skip")
    expected = (
        f"{train}: no usable row for task 't'; the first broken row: {train}, line 2, column 'text': the text is empty"
    )
    assert message([spec], tokenizer, tmp_path / "cache") == expected


def test_yes_no_with_one_value_is_fine(tmp_path: Path, tokenizer: TextTokenizer, write: Write) -> None:
    train = write("t.csv", "text,same\na,yes\nb,yes\n")
    (task,) = read_tasks([TaskSpec("t", "yes_no", ("text",), "same", train, train)], tokenizer, tmp_path / "cache")
    assert task.splits["train"].labels.tolist() == [1.0, 1.0]


def test_a_split_is_read_with_the_labels_of_a_trained_model_and_no_training_file(
    tmp_path: Path, tokenizer: TextTokenizer, opinions: TaskSpec, write: Write
) -> None:
    (task,) = read_tasks([opinions], tokenizer, tmp_path / "cache")
    Path(opinions.train).unlink()
    Path(opinions.dev).unlink()
    more = write("more.csv", "text,opinion\nq r,10\ns,9\n")
    split = read_split(opinions, task.labels, more, tokenizer, tmp_path / "cache", "test")
    assert (split.name, split.source, split.labels.tolist(), split.rows.tolist()) == ("test", more, [1, 0], [2, 3])
    assert list(split.examples()) == [Example(("q r",), "10", 2), Example(("s",), "9", 3)]
    scores = replace(opinions, kind="score", range=(0, 20))
    assert read_split(
        scores, LabelSpace("score", low=0, high=20), more, tokenizer, tmp_path / "cache", "dev"
    ).labels.tolist() == pytest.approx([0.5, 0.45])


def test_a_split_with_labels_the_model_never_saw(
    tmp_path: Path, tokenizer: TextTokenizer, opinions: TaskSpec, write: Write
) -> None:
    labels = LabelSpace("classes", ("9", "10"))
    more = write("more.csv", "text,opinion\nq,11\n,9\ns,9\n")
    with pytest.raises(UserError) as error:
        read_split(opinions, labels, more, tokenizer, tmp_path / "cache", "dev")
    assert str(error.value).splitlines() == [
        "2 broken rows; correct them, or set `broken_rows: skip` to leave them out:",
        f"  {more}, line 2, column 'opinion': '11': not among the labels of the training rows; expected 9, 10",
        f"  {more}, line 3, column 'text': the text is empty",
    ]
    skipping = replace(opinions, broken_rows="skip")
    split = read_split(skipping, labels, more, tokenizer, tmp_path / "cache", "dev")
    assert (split.labels.tolist(), split.num_broken, [row.row for row in split.broken]) == ([0], 2, [2, 3])
    useless = write("useless.csv", "text,opinion\nq,11\n")
    with pytest.raises(UserError, match=r"useless\.csv: no usable row for task 'opinions'; the first broken row: "):
        read_split(skipping, labels, useless, tokenizer, tmp_path / "cache", "dev")


def test_plain_text_needs_no_label(tmp_path: Path, tokenizer: TextTokenizer, write: Write) -> None:
    source = write("t.csv", "a,b\nx y,1\n ,2\nz,3\n")
    spec = TaskSpec("t", "text", ("a",), None, source, source, broken_rows="skip")
    (task,) = read_tasks([spec], tokenizer, tmp_path / "cache")
    assert task.labels == LabelSpace("text", vocabulary=tokenizer.vocabulary)
    assert task.splits["train"].labels.tolist() == [0, 0]
    assert [len(task.splits["train"].tokens(i)[0]) for i in range(2)] == [2, 1]
    assert list(task.splits["dev"].examples()) == [Example(("x y",), None, 2), Example(("z",), None, 4)]
    strict = replace(spec, broken_rows="stop")
    assert "line 3, column 'a': ' ': the text is empty" in message([strict], tokenizer, tmp_path)


# --- a part of the training rows --------------------------------------------------------------------------------------
LETTERS = [("a", "3"), ("b", "1"), ("c", "2"), ("d", "1"), ("e", "3"), ("f", "2")]


def letters(folder: Path, ending: str) -> str:
    """A file of this format with six rows and three classes."""
    path = folder / f"letters.{ending}"
    if ending == "parquet":
        pq.write_table(pa.table({"text": [t for t, _ in LETTERS], "label": [x for _, x in LETTERS]}), path)
    elif ending == "xlsx":
        book = openpyxl.Workbook()
        for row in [("text", "label"), *LETTERS]:
            book.active.append(row)
        book.save(path)
    elif ending == "jsonl":
        path.write_text("".join(f'{{"text": "{text}", "label": {label}}}\n' for text, label in LETTERS))
    else:
        mark = "," if ending == "csv" else "\t"
        path.write_text(f"text{mark}label\n" + "".join(f"{text}{mark}{label}\n" for text, label in LETTERS))
    return str(path)


@pytest.mark.parametrize("ending", ["csv", "tsv", "jsonl", "parquet", "xlsx"])
def test_the_first_rows_of_every_format(tmp_path: Path, tokenizer: TextTokenizer, ending: str) -> None:
    file = letters(tmp_path, ending)
    spec = TaskSpec("t", "classes", ("text",), "label", file, file, rows=2)
    (task,) = read_tasks([spec], tokenizer, tmp_path / "cache")
    train, dev = task.splits["train"], task.splits["dev"]
    assert task.labels.classes == ("1", "2", "3")  # of the whole file
    assert [example.texts[0] for example in train.examples()] == ["a", "b"]
    assert train.labels.tolist() == [2, 0]
    assert train.tokens(1)[0].tolist() == tokenizer.encode(["b"])[0].tolist()
    assert len(dev) == 6


@pytest.mark.parametrize("rows", [3, RowSample(3), RowSample(3, seed=1)])
def test_rows_of_built_in_data(tmp_path: Path, tokenizer: TextTokenizer, rows: int | RowSample) -> None:
    source = "sample:questions-train"
    spec = TaskSpec("t", "yes_no", ("question1", "question2"), "duplicate", source, source, rows=rows)
    (task,) = read_tasks([spec], tokenizer, tmp_path / "cache")
    assert len(task.splits["train"]) == 3
    assert len(list(task.splits["train"].examples())) == 3


def test_a_sample_is_seeded_and_in_the_order_of_the_file(tmp_path: Path, tokenizer: TextTokenizer) -> None:
    file = letters(tmp_path, "csv")
    spec = TaskSpec("t", "classes", ("text",), "label", file, file)

    def sample(rows: int, seed: int, name: str = "t") -> list[int]:
        (task,) = read_tasks([replace(spec, name=name, rows=RowSample(rows, seed))], tokenizer, tmp_path / "cache")
        split = task.splits["train"]
        texts = dict(enumerate((text for text, _ in LETTERS), start=2))
        assert [example.texts[0] for example in split.examples()] == [texts[row] for row in split.rows.tolist()]
        return split.rows.tolist()

    assert sample(4, 0) == sorted(set(sample(4, 0)))
    assert sample(4, 0) == sample(4, 0, "other")
    assert len({tuple(sample(3, seed)) for seed in range(8)}) > 3
    assert sample(6, 0) == [2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize(("rows", "field"), [(4, "rows"), (RowSample(4), "rows.sample")])
def test_more_rows_than_the_file_has(
    tmp_path: Path, tokenizer: TextTokenizer, opinions: TaskSpec, rows: int | RowSample, field: str
) -> None:
    expected = (
        f"recipe: tasks.opinions.{field}: must be at most 3, the number of usable rows of {opinions.train}; found 4"
    )
    assert message([replace(opinions, rows=rows)], tokenizer, tmp_path / "cache") == expected


def test_broken_rows_are_not_counted(tmp_path: Path, tokenizer: TextTokenizer, write: Write) -> None:
    train = write("t.csv", "text,same\n,1\na,1\n ,0\nb,0\nc,1\n")
    spec = TaskSpec("t", "yes_no", ("text",), "same", train, train, broken_rows="skip", rows=2)
    (task,) = read_tasks([spec], tokenizer, tmp_path / "cache")
    assert task.splits["train"].rows.tolist() == [3, 5]
    assert task.splits["train"].num_broken == 2


def test_the_chosen_rows_of_a_trained_model(tmp_path: Path, tokenizer: TextTokenizer, opinions: TaskSpec) -> None:
    spec, labels = replace(opinions, rows=1), LabelSpace("classes", ("9", "10"))
    for source, name, rows in ((opinions.train, "train", 1), (opinions.dev, "train", 2), (opinions.train, "dev", 3)):
        assert len(read_split(spec, labels, source, tokenizer, tmp_path / "cache", name)) == rows


def test_the_rows_are_part_of_the_fingerprint(tmp_path: Path, tokenizer: TextTokenizer, opinions: TaskSpec) -> None:
    specs = [replace(opinions, name=f"t{n}", rows=rows) for n, rows in enumerate((None, 2, RowSample(2)))]
    tasks = read_tasks(specs, tokenizer, tmp_path / "cache")
    assert len({task.fingerprint.replace(task.spec.name, "") for task in tasks}) == 3


# --- tasks that are not trained ---------------------------------------------------------------------------------------
def test_without_a_training_file_the_classes_are_those_of_dev(
    tmp_path: Path, tokenizer: TextTokenizer, opinions: TaskSpec, write: Write
) -> None:
    spec = replace(opinions, train=None, trained=False)
    (task,) = read_tasks([spec], tokenizer, tmp_path / "cache")
    assert task.labels.classes == ("9", "10")
    assert list(task.splits) == ["dev"]
    (task,) = read_tasks([replace(spec, classes=("8", "9", "10"))], tokenizer, tmp_path / "cache")
    assert task.labels.classes == ("8", "9", "10")
    bad = write("bad.csv", "text,opinion\nq,11\n")
    assert "'11': not among the labels of the dev rows; expected 9, 10" in message(
        [replace(spec, test=bad)], tokenizer, tmp_path / "cache"
    )
    one = write("one.csv", "text,opinion\nq,9\n")
    expected = f"{one}: column 'opinion' of task 'opinions' has only the class '9'; expected two or more classes"
    assert message([replace(spec, dev=one)], tokenizer, tmp_path / "cache") == expected
