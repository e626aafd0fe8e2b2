"""polytask tune on the command line."""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rich.console import Console

from polytask.cli.tune import follow
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
        (["--budget", "1h", "--set", "optimizer.lr=1e30"], "recipe: its first steps fail: "),
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


def test_a_stop_between_two_reports_ends_the_runs_before_the_page_is_written() -> None:
    ended = list[str]()

    def reports() -> Iterator[Any]:
        try:
            yield SimpleNamespace(state="done", name="trial 0", part="all steps", score=0.5, settings={})
        finally:
            ended.append("runs")

    def stop(*_: Any, **__: Any) -> None:
        raise SystemExit(143)

    tuning, console = SimpleNamespace(reports=reports, budget=SimpleNamespace(used=0, total=60)), SimpleNamespace()
    console.print = stop
    try:
        follow(cast(Any, tuning), cast(Any, console))
    except SystemExit:
        assert ended == ["runs"]


def test_a_failed_run_has_its_settings_and_its_error(capsys: pytest.CaptureFixture[str]) -> None:
    report = SimpleNamespace(state="failed", name="trial 0", part="all steps", score=None, settings={"lr": 1})
    report.error = "x"
    tuning = SimpleNamespace(reports=lambda: (one for one in [report]), budget=SimpleNamespace(used=0, total=60))
    follow(cast(Any, tuning), Console())
    assert capsys.readouterr().out == "0.0 of 1.0 min  trial 0, all steps: FAILED  lr=1\nx\n"


def test_a_budget_is_required(cli: Any) -> None:
    assert cli("tune", QUICKSTART).code == 2
