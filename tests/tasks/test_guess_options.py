"""Files with options: lists and columns are recognized, and pairs, classes and other lists are not taken for them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from polytask.tasks.guess import guess_task
from polytask.tasks.splitting import split_file

Table = Callable[..., str]
WORDS = ["kettle", "parcel", "invoice", "lamp", "ticket", "garden", "window"]


def written(folder: Path, rows: list[dict[str, Any]]) -> str:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def offered(n: int) -> list[str]:
    return [f"the {WORDS[(n + k) % 7]} of row {n}" for k in range(3 + n % 2)]


def test_the_sample() -> None:
    guess = guess_task("reply", "sample:replies-train")
    spec = guess.spec
    assert (spec.kind, spec.text, spec.label) == ("choice", ("message",), "best")
    assert spec.options == ("reply_0", "reply_1", "reply_2", "reply_3")
    assert spec.dev == "sample:replies-dev"
    assert guess.reasons[1:3] == [
        "options: columns 'reply_0', 'reply_1', 'reply_2', 'reply_3' of 3 to 4 texts",
        "label: column 'best', which names one of the options: choice",
    ]


@pytest.mark.parametrize(
    ("names", "label"),
    [
        (["option_a", "option_b", "option_c"], "answer"),
        (["choice1", "choice2", "choice3"], "label"),
        (["Answer A", "Answer B", "Answer C"], "correct"),
        (["A", "B", "C"], "target"),
    ],
)
def test_columns_with_one_option_each(table: Table, names: list[str], label: str) -> None:
    rows = [[n, f"what is row {n} about?", *offered(2 * n), n % 3] for n in range(40)]
    spec = guess_task("t", table("x.csv", ["id", "question", *names, label], rows)).spec
    assert (spec.kind, spec.text, spec.options, spec.label) == ("choice", ("question",), tuple(names), label)


def test_labels_that_name_columns(table: Table) -> None:
    rows = [[f"what is row {n} about?", *offered(2 * n), "ABC"[n % 3]] for n in range(40)]
    spec = guess_task("t", table("x.csv", ["question", "A", "B", "C", "answerKey"], rows)).spec
    assert (spec.kind, spec.options, spec.label) == ("choice", ("A", "B", "C"), "answerKey")


@pytest.mark.parametrize("as_text", [False, True])
def test_lists_of_options_and_their_split(tmp_path: Path, as_text: bool) -> None:
    rows = [
        {"q": f"what is row {n} about?", "given": offered(n), "right": offered(n)[n % 3] if as_text else n % 3}
        for n in range(40)
    ]
    guess = guess_task("t", written(tmp_path, rows))
    spec = guess.spec
    assert (spec.kind, spec.text, spec.options, spec.label) == ("choice", ("q",), "given", "right")
    assert guess.reasons[1] == "options: column 'given', lists of 3 to 4 texts"
    parts = split_file(spec, tmp_path)
    lines = [json.loads(line) for part in (parts.train, parts.dev) for line in part.read_text().splitlines()]
    assert sorted(lines, key=lambda line: str(line["q"])) == sorted(rows, key=lambda row: str(row["q"]))


def test_blank_labels_are_skipped_and_a_given_label_is_kept(tmp_path: Path) -> None:
    rows = [{"q": f"row {n}?", "choices": offered(n), "x": n % 2 if n % 4 else None} for n in range(40)]
    guess = guess_task("t", written(tmp_path, rows), label="x")
    assert (guess.spec.kind, guess.spec.blank_labels) == ("choice", "skip")
    assert guess.reasons[2].endswith("as given: choice; empty in 10 of 40 rows, which are left out")


@pytest.mark.parametrize(
    ("columns", "row", "kind"),
    [
        (["sentence1", "sentence2", "label"], lambda n: [f"one {n}", f"two {n + 1}", n % 2], "yes_no"),
        (["text_a", "text_b", "text_c", "label"], lambda n: [f"one {n}", f"two {n}", f"three {n}", n % 2], "yes_no"),
        (["answer1", "answer2", "answer3", "label"], lambda n: [f"one {n}", f"two {n}", f"three {n}", n % 2], "yes_no"),
        (["text", "option1", "option2", "score"], lambda n: [f"one {n}", f"a {n}", f"b {n}", n / 7], "score"),
        (["text", "topics", "stars"], lambda n: [f"one {n}", '["a", "b"]' if n % 2 else '["c"]', n % 2], "yes_no"),
    ],
)
def test_other_files_have_no_options(table: Table, columns: list[str], row: Any, kind: str) -> None:
    spec = guess_task("x", table("x.csv", columns, [row(n) for n in range(60)])).spec
    assert (spec.kind, spec.options) == (kind, None)
