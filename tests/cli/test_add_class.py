"""polytask add-class on the command line: what it shows, and how it ends where the old rows fell too far."""

from pathlib import Path

import pytest

from .conftest import Cli

SHORT = ["--set", "train.epochs=1", "--set", "train.steps_per_epoch=4"]


@pytest.fixture
def first(cli: Cli, tmp_path: Path, tiny_settings: list[str]) -> Path:
    """A run of one task that it knows by heart."""
    (tmp_path / "mood.csv").write_text("words,mood\n" + "a fine day,good\na foul day,bad\n" * 10)
    (tmp_path / "new.csv").write_text("words,mood\n" + "".join(f"so so {n},middling\n" for n in range(10)))
    (tmp_path / "mood.yaml").write_text(
        "name: mood\nmax_length: 32\n"
        "tasks: {mood: {kind: classes, text: words, label: mood, train: mood.csv, dev: mood.csv}}\n"
    )
    tiny = [word for setting in tiny_settings for word in ("--set", setting)]
    said = cli("train", tmp_path / "mood.yaml", *tiny, "--run", tmp_path / "first")
    assert said.code == 0, said.err
    return tmp_path / "first"


def test_old_and_new_classes_are_shown(cli: Cli, tmp_path: Path, first: Path) -> None:
    run = tmp_path / "run"
    words = ["add-class", first, "--task", "mood", "--class", "middling", "--data", tmp_path / "new.csv", "--run", run]
    said = cli(*words, *SHORT, "--set", "add.max_drop=100")
    assert said.code == 0, said.err
    for shown in ("old tasks on dev, before and after", "classes of mood on dev, before and after", "middling (new)"):
        assert shown in said.out
    asked = cli("predict", run, "--text", "so so")
    assert asked.code == 0, asked.err
    assert "middling" in asked.out
    again = cli(*words, *SHORT)
    assert again.code == 1
    assert "pass --resume to continue it" in again.err


def test_a_drop_is_refused(cli: Cli, tmp_path: Path, first: Path) -> None:
    (tmp_path / "same.csv").write_text("words,mood\n" + "".join(f"a fine day {'x' * n},great\n" for n in range(10)))
    words = ["add-class", first, "--task", "mood", "--class", "great", "--data", tmp_path / "same.csv"]
    wild = ["--set", "add.rehearse=0", "--set", "optimizer.lr=1.0", "--set", "train.epochs=20"]
    said = cli(*words, "--run", tmp_path / "run", *wild)
    assert said.code == 1
    assert said.err.startswith("error: no model was saved: mood fell by ")
    assert not (tmp_path / "run" / "model").exists()


def test_mistakes_are_reported(cli: Cli, tmp_path: Path, first: Path) -> None:
    options = ["--data", tmp_path / "new.csv", "--run", tmp_path / "run"]
    for task, name, message in (
        ("moood", "middling", "there is no task 'moood' (did you mean mood?)"),
        ("mood", "good", "task mood already has the class 'good'"),
        ("mood", "Good", "differs from 'Good' only in upper and lower case"),
    ):
        said = cli("add-class", first, "--task", task, "--class", name, *options)
        assert (said.code, said.out) == (1, "")
        assert message in said.err
    assert cli("add-class", first, "--task", "mood").code == 2
    assert not (tmp_path / "run").exists()
