"""polytask init: from files of one's own to a recipe that trains."""

from pathlib import Path
from typing import Any

import pytest


def rows(count: int) -> str:
    kinds = ["billing", "delivery", "returns"]
    return "".join(f"ticket number {i} about {kinds[i % 3]} and other things,{kinds[i % 3]}\n" for i in range(count))


def test_one_csv_becomes_a_trained_run(cli: Any, tmp_path: Path, monkeypatch: Any, tiny_settings: list[str]) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tickets.csv").write_text("body,team\n" + rows(60))
    said = cli("init", "recipe.yaml", "--task", "team=tickets.csv")
    assert said.code == 0, said.err
    assert "label: column 'team'" in said.out
    assert "dev: a fifth of the rows" in said.out
    text = Path("recipe.yaml").read_text()
    assert "train: data/team-train.csv" in text
    assert str(tmp_path) not in text  # the folder can be moved
    settings = [word for setting in tiny_settings for word in ("--set", setting)]
    assert cli("check", "recipe.yaml", *settings).code == 0
    trained = cli("train", "recipe.yaml", *settings)
    assert trained.code == 0, trained.err
    assert cli("predict", "runs/recipe", "--task", "team", "--text", "where is my parcel").code == 0


def test_two_files_with_dev_beside_or_given(cli: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a-train", "a-dev", "b", "other"):
        Path(f"{name}.csv").write_text("body,team\n" + rows(30))
    said = cli("init", "--task", "one=a-train.csv", "--task", "two=b.csv", "--dev", "two=other.csv")
    assert said.code == 0, said.err
    text = Path("recipe.yaml").read_text()
    assert "dev: a-dev.csv" in text
    assert "dev: other.csv" in text
    assert not Path("data").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], 1, "at least one task is needed, as --task NAME=FILE"),
        (["--task", "a"], 2, "expected NAME=FILE"),
        (["--task", "a=x.csv", "--task", "a=y.csv"], 2, "given twice"),
        (["--task", "../a=tickets.csv"], 1, "a task's name is letters, digits"),
        (["--task", "a=none.csv"], 1, "none.csv: no such file"),
        (["--task", "a=tickets.csv", "--dev", "b=tickets.csv"], 1, "there is no --task 'b'. Valid: a"),
        (["there.yaml", "--task", "a=tickets.csv"], 1, "is there already"),
    ],
)
def test_refused(cli: Any, tmp_path: Path, monkeypatch: Any, arguments: list[str], code: int, message: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tickets.csv").write_text("body,team\n" + rows(30))
    Path("there.yaml").write_text("mine")
    said = cli("init", *arguments)
    assert said.code == code
    assert message in " ".join((said.err + said.out).replace("│", " ").split())
    assert Path("there.yaml").read_text() == "mine"
    assert not Path("recipe.yaml").exists()
