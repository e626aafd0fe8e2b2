"""polytask predict: one text, one pair, whole files in every format."""

import csv
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from polytask import Finished, Prediction, load
from polytask.cli.predict import WITHOUT_TEXT, count_lines, format_prediction


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
    assert header == "sentence1,sentence2,text," + ",".join(
        f"{part}_{task}"
        for task, parts in {"opinion": ("predicted", "probability"), "similarity": ("predicted",)}.items()
        for part in (*parts, "tokens", "truncated")
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--task", "mood", "--text", "x"], "there is no task 'mood'. Valid: opinion, question, similarity"),
        (["--task", "question", "--text", "x"], "task question takes 2 text(s) per example"),
        (["--task", "opinion", "--text", "x", "--text2", "y"], "task opinion takes 1 text(s)"),
        (["--task", "opinion", "--text", " "], "the text is empty"),
        (["--text", "x", "--precision", "int4"], "there is no precision 'int4'. Valid: bf16, float32"),
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
        assert said.out == f"30 rows: {out}\n"
        if ending == "parquet":
            found[ending] = pq.read_table(out).to_pylist()
        elif ending == "jsonl":
            found[ending] = [json.loads(line) for line in out.read_text().splitlines()]
        else:
            with out.open(newline="") as file:
                found[ending] = list(csv.DictReader(file, delimiter="," if ending == "csv" else "\t"))
        # What was written can be read again.
        again = ["--input", out, "--output", tmp_path / f"again-{ending}.jsonl", "--columns", "text,predicted_opinion"]
        said = cli("predict", tiny_run.folder, "--task", "question", *again)
        assert said.code == 0, said.err
    for rows in found.values():
        assert [row["text"] for row in rows] == texts
        assert [row["predicted_opinion"] for row in rows] == [row["predicted_opinion"] for row in found["csv"]]
        assert [float(row["probability_opinion"]) for row in rows] == pytest.approx(
            [float(row["probability_opinion"]) for row in found["csv"]]
        )


def test_strict_stops_at_the_first_row_without_text(cli: Any, tiny_run: Finished, tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text('text\nfine\n" "\n')
    files = ["--input", tmp_path / "in.csv", "--output", tmp_path / "out.csv"]
    said = cli("predict", tiny_run.folder, "--task", "opinion", *files, "--strict")
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
    assert "must be one of .csv, .tsv, .txt, .jsonl, .ndjson, .parquet" in wrong.err


def test_rows_without_text_are_counted(cli: Any, tiny_run: Finished, tmp_path: Path) -> None:
    rows = [["1", "fine", "a", "b"], ["2", "", "a", ""], ["3", " ", "a", "b"], ["4", "good", "", ""]]
    with (tmp_path / "in.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["id", "text", "question1", "question2"], *rows])
    said = cli("predict", tiny_run.folder, "--input", tmp_path / "in.csv", "--output", tmp_path / "out.csv")
    assert said.code == 0, said.err
    assert said.out.splitlines()[1:] == ["2 of 4 rows have no text and no prediction"]
    with (tmp_path / "out.csv").open(newline="") as file:
        found = list(csv.DictReader(file))
    assert [[row[name] for name in ("id", "text", "question1", "question2")] for row in found] == rows
    assert [bool(row["predicted_opinion"]) for row in found] == [True, False, False, True]
    assert [bool(row["probability_question"]) for row in found] == [True, False, True, False]


def test_one_line_for_each_task_where_the_counts_differ() -> None:
    assert count_lines(1000, {"a": 12, "b": 12}, WITHOUT_TEXT) == ["12 of 1,000 rows have no text and no prediction"]
    assert count_lines(1, {"a": 1}, WITHOUT_TEXT) == ["1 of 1 row has no text and no prediction"]
    assert count_lines(3, {"a": 0, "b": 0}, WITHOUT_TEXT) == []
    assert count_lines(3, {"a": 0, "b": 1}, WITHOUT_TEXT) == ["b: 1 of 3 rows have no text and no prediction"]


def test_probabilities_of_one_text(cli: Any, tiny_run: Finished) -> None:
    ask = ["predict", tiny_run.folder, "--task", "opinion", "--text", "fine", "--probabilities"]
    assert cli(*ask, "none").out.strip() in {
        f"opinion: {name}" for name in load(tiny_run.folder).bundle.labels["opinion"].classes
    }
    assert cli(*ask, "all").out == cli(*ask[:-1]).out  # five classes: all are shown anyway
    wrong = cli(*ask, "some")
    assert wrong.code == 2
    assert "must be top, all or none, found 'some'" in wrong.err
    many = Prediction("t", "a", dict.fromkeys("abcdefgh", 0.1))
    assert format_prediction(many).endswith(", and 3 more)")
    assert "h 0.10)" in format_prediction(many, "all")


def test_an_existing_output_needs_force(cli: Any, tiny_run: Finished, tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("text\nfine\n")
    (tmp_path / "out.csv").write_text("precious")
    ask = ["predict", tiny_run.folder, "--task", "opinion", "--input", tmp_path / "in.csv", "--output"]
    said = cli(*ask, tmp_path / "out.csv")
    assert said.code == 1
    assert "out.csv: already exists; choose another name, or pass --force" in said.err
    assert (tmp_path / "out.csv").read_text() == "precious"
    assert cli(*ask, tmp_path / "out.csv", "--force").code == 0
    assert (tmp_path / "out.csv").read_text().startswith("text,predicted_opinion")
    said = cli(*ask, tmp_path / "in.csv", "--force")
    assert said.code == 1
    assert "in.csv: is the input file" in said.err
    assert (tmp_path / "in.csv").read_text() == "text\nfine\n"


def test_truncated_texts_are_reported(cli: Any, tiny_run: Finished, tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text(f"text,opinion\ngood,positive\n{'good ' * 70},positive\n")
    files = ["--input", tmp_path / "in.csv", "--output", tmp_path / "out.csv"]
    said = cli("predict", tiny_run.folder, "--task", "opinion", *files)
    assert "1 of 2 rows have more tokens than max_length" in said.out
    said = cli("predict", tiny_run.folder, "--task", "opinion", "--text", "good " * 70)
    assert "warning: the text has 72 tokens and was truncated" in said.out
    said = cli("evaluate", tiny_run.folder, "--on", f"opinion={tmp_path / 'in.csv'}")
    assert "opinion: warning: 1 row has more tokens than max_length" in said.out


def test_a_threshold_for_labels(cli: Any, tiny_run: Finished, tmp_path: Path) -> None:
    task = ["--task", "opinion", "--abstain-below", 1]
    said = cli("predict", tiny_run.folder, *task, "--text", "good")
    assert said.out.startswith("opinion: no label (")
    (tmp_path / "in.csv").write_text("text\ngood\n")
    said = cli("predict", tiny_run.folder, *task, "--input", tmp_path / "in.csv", "--output", tmp_path / "out.csv")
    assert "1 of 1 row has no label, or fewer spans, because of probabilities below the threshold" in said.out
    assert cli("predict", tiny_run.folder, "--abstain-below", 1.5, "--text", "good").code == 2


# --- bulk prediction --------------------------------------------------------------------------------------------------
def test_many_files_and_again(cli: Any, tiny_run: Finished, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for name in ("a", "b"):
        (tmp_path / "in" / f"{name}.csv").write_text("text,n\ngood,1\n,2\n")
    words = "predict", tiny_run.folder, "--input", tmp_path / "in" / "*.csv", "--output", tmp_path / "out"
    said = cli(*words, "--engine", "local", "--workers", "1")
    assert said.code == 0, said.err
    first, second, third = said.out.splitlines()
    assert first == "4 rows of 2 files: 2 shards, 0 done before"
    assert second.startswith("4 rows in ")
    assert second.endswith(f" rows/s): {tmp_path / 'out'}")
    assert third == "2 of 4 rows have no text and no prediction"
    assert [path.name for path in sorted((tmp_path / "out").iterdir())] == [
        ".lock",
        "_SUCCESS.json",
        "_plan.json",
        "part-00000.csv",
        "part-00001.csv",
    ]
    assert cli(*words, "--engine", "local").out.splitlines()[0] == "4 rows of 2 files: 2 shards, 2 done before"
    other = cli(*words, "--engine", "local", "--probabilities", "none")
    assert other.code == 1
    assert "probabilities was top and is now none" in other.err


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--input", "*.csv", "--output", "out"], 1, "*.csv: --input is a pattern; pass --engine local (or ray)"),
        (["--input", ".", "--output", "out"], 1, ".: --input is a folder; pass --engine local (or ray)"),
        (["--input", "s3://b/a.csv", "--output", "out"], 1, "--input is a URL; pass --engine local (or ray)"),
        (["--input", "a.csv", "--input", "b.csv", "--output", "out"], 1, "--input is several files; pass --engine"),
        (["--text", "x", "--engine", "ray"], 2, "--engine ray is for --input and --output"),
        (["--text", "x", "--workers", "2"], 2, "are for --engine local or ray"),
        (
            ["--input", "x.csv", "--output", "out", "--engine", "local", "--gpus-per-worker", "1"],
            2,
            "--gpus-per-worker are for --engine ray",
        ),
        (["--text", "x", "--engine", "spark"], 2, "--engine must be torch, onnx, local or ray, found 'spark'"),
    ],
)
def test_what_only_bulk_prediction_does(
    cli: Any, tiny_run: Finished, arguments: list[str], code: int, message: str
) -> None:
    said = cli("predict", tiny_run.folder, *arguments)
    assert said.code == code
    assert message in " ".join(said.err.replace("│", " ").split())
