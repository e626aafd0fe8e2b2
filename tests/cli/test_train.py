"""polytask train and check on the command line."""

import re
from pathlib import Path
from typing import Any

QUICKSTART = Path(__file__).parent.parent.parent / "recipes" / "quickstart.yaml"


def settings(tiny: list[str]) -> list[str]:
    return [word for setting in tiny for word in ("--set", setting)]


def test_train_ends_with_scores_and_the_report(cli: Any, tmp_path: Path, tiny_settings: list[str]) -> None:
    said = cli("train", QUICKSTART, *settings(tiny_settings), "--run", tmp_path / "run")
    assert said.code == 0, said.err
    assert "step 20/20  dev: opinion accuracy" in said.out
    for words in ("opinion", "question", "similarity", "pearson", "guess", str(tmp_path / "run" / "report.html")):
        assert words in said.out
    assert (tmp_path / "run" / "report.html").is_file()
    assert "removed: the checkpoints" in said.out
    assert "--keep-checkpoints" in said.out
    again = cli("train", QUICKSTART, *settings(tiny_settings), "--run", tmp_path / "run")
    assert again.code == 1
    assert "pass --resume to continue it" in again.err
    assert cli("train", QUICKSTART, *settings(tiny_settings), "--run", tmp_path / "run", "--resume").code == 0


def test_tasks_that_are_not_trained_and_training_rows(cli: Any, tmp_path: Path, tiny_settings: list[str]) -> None:
    more = ["tasks.opinion.trained=false", "train.evaluate_train=50"]
    said = cli("train", QUICKSTART, *settings([*tiny_settings, *more]), "--run", tmp_path / "run")
    assert said.code == 0, said.err
    assert "opinion * " in said.out
    assert "*: not trained, only scored" in said.out
    assert re.search(r"training rows \(minus dev\): question accuracy 0\.\d+ on 50 rows \([+-]0\.\d+\), sim", said.out)
    again = cli("train", QUICKSTART, *settings([*tiny_settings, *more]), "--run", tmp_path / "run", "--resume")
    assert again.code == 0
    assert "opinion * " in again.out
