"""polytask predict: one text, one pair, whole files in every format."""

import csv
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from polytask import Finished


def test_one_text_and_one_pair(cli: Any, tiny_run: Finished) -> None:
    said = cli("predict", tiny_run.folder, "--task", "opinion", "--text", "Not bad at all.")
    assert said.code == 0, said.err
    assert said.out.startswith("opinion: ")
    assert "very negative" in said.out
    pair = cli(
        "predict", tiny_run.folder, "--task", "similarity", "--text", "A dog runs.", "--text2", "A dog is running."
    )
    label, _, score = pair.out.strip().partition(": ")
    assert label == "similarity"
    assert 0 <= float(score) <= 5


def test_some_tasks_and_all_that_fit(cli: Any, tiny_run: Finished, tmp_path: Path) -> None:
    pair = ["--text", "A dog runs.", "--text2", "A dog is running."]
    said = cli("predict", tiny_run.folder, *pair)
    assert [line.partition(":")[0] for line in said.out.splitlines()] == ["question", "similarity"]
    said = cli("predict", tiny_run.folder, "--task", "similarity", "--task", "question", *pair)
    assert [line.partition(":")[0] for line in said.out.splitlines()] == ["similarity", "question"]
    (tmp_path / "in.csv").write_text("sentence1,sentence2,text\na,b,c\n")
    said = cli("predict", tiny_run.folder, "--input", tmp_path / "in.csv", "--output", tmp_path / "out.csv")
    assert said.code == 0, said.err
    header = (tmp_path / "out.csv").read_text().splitlines()[0]
    assert header == "sentence1,sentence2,text,predicted_opinion,probability_opinion,predicted_similarity"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--task", "mood", "--text", "x"], "there is no task 'mood'. Valid: opinion, question, similarity"),
        (["--task", "question", "--text", "x"], "task question takes 2 text(s)"),
        (["--task", "opinion", "--text", "x", "--text2", "y"], "task opinion takes 1 text(s)"),
        (["--task", "opinion", "--text", " "], "the text is empty"),
        (["--text", "x", "--precision", "int4"], "there is no precision 'int4'. Valid: bf16, fp32"),
        (["--task", "opinion", "--input", "none.csv", "--output", "out.csv"], "none.csv: no such file"),
    ],
)
def test_wrong_questions(cli: Any, tiny_run: Finished, arguments: list[str], message: str) -> None:
    said = cli("predict", tiny_run.folder, *arguments)
    assert said.code == 1
    assert message in said.err


def test_files_of_every_format_give_the_same(cli: Any, tiny_run: Finished, tmp_path: Path) -> None:
    texts = [f'Number {i}, "quoted", with a comma\tand a tab' for i in range(30)]
    with (tmp_path / "in.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "text"])
        writer.writerows(enumerate(texts))
    found: dict[str, list[dict[str, Any]]] = {}
    for ending in ("csv", "tsv", "jsonl", "parquet"):
        out = tmp_path / f"out.{ending}"
        said = cli("predict", tiny_run.folder, "--task", "opinion", "--input", tmp_path / "in.csv", "--output", out)
        assert said.code == 0, said.err
        assert "30 predictions" in said.out
        if ending == "parquet":
            found[ending] = pq.read_table(out).to_pylist()
        elif ending == "jsonl":
            found[ending] = [json.loads(line) for line in out.read_text().splitlines()]
        else:
            with out.open(newline="") as file:
                found[ending] = list(csv.DictReader(file, delimiter="," if ending == "csv" else "\t"))
        # What was written can be read again.
        again = cli(
            "predict", tiny_run.folder, "--task", "opinion", "--input", out, "--output", tmp_path / "again.jsonl"
        )
        assert again.code == 0, again.err
    for rows in found.values():
        assert [row["text"] for row in rows] == texts
        assert [row["predicted_opinion"] for row in rows] == [row["predicted_opinion"] for row in found["csv"]]
        assert [float(row["probability_opinion"]) for row in rows] == pytest.approx(
            [float(row["probability_opinion"]) for row in found["csv"]]
        )


def test_a_broken_input_leaves_no_output(cli: Any, tiny_run: Finished, tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text('text\nfine\n" "\n')
    out = tmp_path / "out.csv"
    said = cli("predict", tiny_run.folder, "--task", "opinion", "--input", tmp_path / "in.csv", "--output", out)
    assert said.code == 1
    assert "in.csv, line 3, column 'text': " in said.err
    assert [path.name for path in tmp_path.iterdir()] == ["in.csv"]


def test_other_columns_and_wrong_endings(cli: Any, tiny_run: Finished, tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("a,b\nsome words,other words\n")
    files = ["--input", tmp_path / "in.csv", "--output", tmp_path / "out.jsonl"]
    said = cli("predict", tiny_run.folder, "--task", "question", *files)
    assert said.code == 1
    assert "no column 'question1'; its columns are: a, b" in said.err
    assert cli("predict", tiny_run.folder, "--task", "question", *files, "--columns", "a, b").code == 0
    wrong = cli("predict", tiny_run.folder, "--task", "question", *files[:2], "--output", tmp_path / "out.xlsx")
    assert wrong.code == 1
    assert "use one of .csv, .tsv, .jsonl, .parquet" in wrong.err
