"""Predictions for files, from Python: memory stays flat because rows are never held together."""

from pathlib import Path

import pytest

from polytask import Finished, UserError, load, predict_file


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
