"""polytask add-task on the command line: what it shows, and how it ends where too much was forgotten."""

from pathlib import Path

import pytest

from .conftest import Cli

ADDING = Path(__file__).parent.parent.parent / "recipes" / "adding"
SHORT = ["--set", "train.epochs=1", "--set", "train.steps_per_epoch=4"]


@pytest.fixture
def first(cli: Cli, tmp_path: Path, tiny_settings: list[str]) -> Path:
    """A run of one task that it knows by heart."""
    (tmp_path / "mood.csv").write_text("words,mood\n" + "a fine day,good\na foul day,bad\n" * 10)
    (tmp_path / "mood.yaml").write_text(
        "name: mood\nmax_length: 32\nadapter: {name: houlsby, size: 4}\n"
        "tasks: {mood: {kind: classes, text: words, label: mood, train: mood.csv, dev: mood.csv}}\n"
    )
    tiny = [word for setting in tiny_settings for word in ("--set", setting)]
    said = cli("train", tmp_path / "mood.yaml", *tiny, "--run", tmp_path / "first")
    assert said.code == 0, said.err
    return tmp_path / "first"


def test_frozen(cli: Cli, tmp_path: Path, first: Path) -> None:
    run = tmp_path / "run"
    said = cli("add-task", first, ADDING / "similarity.yaml", *SHORT, "--run", run)
    assert said.code == 0, said.err
    for words in ("step 4/4  dev: similarity pearson", "old tasks on dev, before and after", "bit-identical"):
        assert words in said.out
    assert f"model:  {run / 'model'}" in said.out
    asked = cli("predict", run, "--task", "similarity", "--text", "A cat sits.", "--text2", "A cat is sitting.")
    assert asked.code == 0, asked.err
    again = cli("add-task", first, ADDING / "similarity.yaml", *SHORT, "--run", run)
    assert again.code == 1
    assert "pass --resume to continue it" in again.err
    assert cli("add-task", first, ADDING / "similarity.yaml", *SHORT, "--run", run, "--resume").code == 0


def test_measured_and_refused(cli: Cli, tmp_path: Path, first: Path) -> None:
    run = tmp_path / "run"
    wild = [*SHORT, "--set", "policy=sum", "--set", "optimizer.lr=0.3", "--set", "add.max_drop=5", "--run", run]
    said = cli("add-task", first, ADDING / "similarity-replay.yaml", *wild)
    assert said.code == 1
    assert said.err.startswith("error: no model was saved: mood fell by ")
    assert said.err.endswith("and add.max_drop allows 5\n")
    for words in ("old tasks on dev, before and after", "changed", str(run / "report.html")):
        assert words in said.out
    assert "model:" not in said.out
    asked = cli("predict", run, "--task", "mood", "--text", "Fine.")
    assert asked.code == 1
    assert "no trained model here: it was not saved, because mood fell by" in asked.err


def test_wrong_files_are_reported(cli: Cli, tmp_path: Path) -> None:
    said = cli("add-task", tmp_path / "nothing", ADDING / "similarity.yaml")
    assert (said.code, said.out) == (1, "")
    assert "nothing: there is no such run" in said.err
    plain = cli("train", ADDING / "similarity.yaml", "--run", tmp_path / "run")
    assert plain.code == 1
    assert "polytask add-task RUN RECIPE" in plain.err
