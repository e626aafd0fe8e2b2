"""polytask tune on the command line."""

import sys
from pathlib import Path
from typing import Any

import pytest

from polytask.tuning import budget, search

QUICKSTART = Path(__file__).parent.parent.parent / "recipes" / "quickstart.yaml"


def settings(tiny: list[str]) -> list[str]:
    return [word for setting in [*tiny, "train.epochs=1"] for word in ("--set", setting)]


@pytest.mark.slow
@pytest.mark.parametrize("engine", [[], ["--engine", "ray", "--workers", "2"]])
def test_a_tuning_from_the_command_line(
    cli: Any, tmp_path: Path, tiny_settings: list[str], monkeypatch: pytest.MonkeyPatch, engine: list[str]
) -> None:
    monkeypatch.setattr(budget, "MOST_SEEDS", 1)
    monkeypatch.setattr(search, "MOST_SEEDS", 1)
    monkeypatch.chdir(tmp_path)
    command = ["tune", QUICKSTART, "--budget", "30m", "--vary", "optimizer.lr=3e-3,1e-3", *settings(tiny_settings)]
    command += engine
    said = cli(*command)
    assert said.code == 0, said.err
    lines = said.out.splitlines()
    assert lines[0] == "varies optimizer.lr: 0.003, 0.001"
    assert "trial 0, 1/9 of the steps: " in lines[1]
    assert lines[1].endswith("points  optimizer.lr=0.003")
    assert "Beats the recipe on held-back rows: " in said.out
    assert "recipe: tuning/quickstart/best.yaml" in said.out
    assert (tmp_path / "tuning" / "quickstart" / "report.html").is_file()
    again = cli(*command)
    assert again.code == 0
    assert "trial 0" not in again.out.partition("Beats")[0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--budget", "1s"], "--budget: 1.0 s is too short: one run of this recipe takes about "),
        (["--budget", "soon"], "--budget: must be a time such as 90s, 20m or 2h, found soon"),
        (["--budget", "1h", "--vary", "train.lr=1,2"], "--vary train.lr: with the value 1: "),
        (["--budget", "1h", "--vary", "dropout=0.2..0.1"], "the range is empty"),
        (["--budget", "1h", "--workers", "0"], "--workers: must be at least 1, found 0"),
        (["--budget", "1h", "--hold-back", "2"], "--hold-back: must be a share of the dev rows"),
        (["--budget", "1h", "--hold-back", "test"], "have no test file: opinion, question, similarity; pass"),
    ],
)
def test_errors(cli: Any, tmp_path: Path, tiny_settings: list[str], arguments: list[str], message: str) -> None:
    said = cli("tune", QUICKSTART, "--folder", tmp_path / "out", *settings(tiny_settings), *arguments)
    assert said.code == 1
    assert message in said.err


def test_without_optuna_the_extra_is_named(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    said = cli("tune", QUICKSTART, "--budget", "20m")
    assert said.code == 1
    assert "needs the Optuna library: pip install 'polytask[tune]'" in said.err


def test_a_budget_is_required(cli: Any) -> None:
    assert cli("tune", QUICKSTART).code == 2
