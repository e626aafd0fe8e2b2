"""Predictions for files, from Python: memory stays flat because rows are never held together."""

import csv
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from polytask import Finished, UserError, load, predict_file
from polytask.serving import predictor as module
from polytask.serving.predictor import windows


def test_two_tasks_one_after_the_other(tiny_run: Finished, tmp_path: Path) -> None:
    model = load(tiny_run.folder)
    (tmp_path / "in.jsonl").write_text('{"text": "good", "n": 1}\n{"text": "bad", "n": 2}\n')
    assert predict_file(model, "opinion", str(tmp_path / "in.jsonl"), tmp_path / "a.csv") == 2
    header = (tmp_path / "a.csv").read_text().splitlines()[0]
    assert header == "text,n,predicted_opinion,probability_opinion"


def test_no_such_folder_for_the_output(tiny_run: Finished, tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("text\ngood\n")
    with pytest.raises(UserError, match="there is no folder"):
        predict_file(load(tiny_run.folder), "opinion", str(tmp_path / "in.csv"), tmp_path / "no" / "out.csv")


COLUMNS = "text,question1,question2,sentence1,sentence2"


def test_all_tasks_whose_columns_are_there(tiny_run: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WINDOW", 3)  # so that rows cross the borders of windows
    words = ["one", "two words", "three short words", "and now four words", "the fifth has five words", "six", "seven"]
    rows = [f"{a},{b},{c},{a},{b}" for a, b, c in zip(words, words[1:] + words[:1], words[2:] + words[:2], strict=True)]
    (tmp_path / "in.csv").write_text("\n".join([COLUMNS, *rows]) + "\n")
    model = load(tiny_run.folder)
    assert predict_file(model, None, str(tmp_path / "in.csv"), tmp_path / "all.csv") == 7
    with (tmp_path / "all.csv").open(newline="") as file:
        together = list(csv.DictReader(file))
    added = ["predicted_opinion", "probability_opinion", "predicted_question", "probability_question"]
    assert list(together[0]) == [*COLUMNS.split(","), *added, "predicted_similarity"]
    for task in model.tasks:
        predict_file(model, task, str(tmp_path / "in.csv"), tmp_path / "one.csv")
        with (tmp_path / "one.csv").open(newline="") as file:
            alone = list(csv.DictReader(file))
        assert [row["text"] for row in alone] == words
        if task == "similarity":
            assert [float(row[f"predicted_{task}"]) for row in together] == pytest.approx(
                [float(row[f"predicted_{task}"]) for row in alone], abs=1e-4
            )
        else:
            assert [row[f"predicted_{task}"] for row in together] == [row[f"predicted_{task}"] for row in alone]


def test_only_tasks_that_fit(tiny_run: Finished, tmp_path: Path) -> None:
    model = load(tiny_run.folder)
    (tmp_path / "in.jsonl").write_text('{"question1": "a", "question2": "b", "sentence1": "c"}\n')
    predict_file(model, None, str(tmp_path / "in.jsonl"), tmp_path / "out.jsonl")
    found = json.loads((tmp_path / "out.jsonl").read_text())
    assert [key for key in found if key.startswith("predicted_")] == ["predicted_question"]
    predict_file(model, None, str(tmp_path / "in.jsonl"), tmp_path / "out.jsonl", ["question1", "sentence1"])
    found = json.loads((tmp_path / "out.jsonl").read_text())
    assert [key for key in found if key.startswith("predicted_")] == ["predicted_question", "predicted_similarity"]
    (tmp_path / "in.jsonl").write_text('{"note": "a"}\n')
    with pytest.raises(UserError, match=r"columns of no task \(opinion: text; question: question1, question2; sim"):
        predict_file(model, None, str(tmp_path / "in.jsonl"), tmp_path / "out.jsonl")
    with pytest.raises(UserError, match="no task of opinion, question, similarity takes 3"):
        predict_file(model, None, str(tmp_path / "in.jsonl"), tmp_path / "out.jsonl", ["note"] * 3)


def test_windows_end_early_for_long_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WINDOW_CHARACTERS", 10)
    read = 0

    def texts() -> Iterator[str]:
        nonlocal read
        for text in ("a" * 6, "b" * 6, "c" * 20, "d", "e"):
            read += 1
            yield text

    found = windows(texts(), len)
    assert next(found) == ["a" * 6, "b" * 6]
    assert read == 2
    assert list(found) == [["c" * 20], ["d", "e"]]
