"""polytask train and check on the command line."""

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
