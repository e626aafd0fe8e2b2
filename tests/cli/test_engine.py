"""The options of compare and tune that choose where the runs are trained."""

import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

QUICKSTART = Path(__file__).parent.parent.parent / "recipes" / "quickstart.yaml"


@pytest.fixture(params=["compare", "tune"])
def command(request: pytest.FixtureRequest, tmp_path: Path, tiny_settings: list[str]) -> list[Any]:
    if request.param == "tune":
        return ["tune", QUICKSTART, "--budget", "1h", "--folder", tmp_path / "out"]
    fixed = {key: yaml.safe_load(value) for key, _, value in (setting.partition("=") for setting in tiny_settings)}
    content = {"base": str(QUICKSTART), "set": fixed, "variants": {"one": {}}}
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(content))
    return ["compare", tmp_path / "study.yaml", "--study", tmp_path / "out"]


@pytest.mark.parametrize("option", ["--address", "--cpus-per-cell", "--gpus-per-cell"])
def test_options_of_ray_need_ray(cli: Any, command: list[Any], option: str, tmp_path: Path) -> None:
    said = cli(*command, option, 1)
    assert said.code == 2
    assert f"{option} requires --engine ray" in said.err
    assert not (tmp_path / "out").exists()


def test_an_unknown_engine(cli: Any, command: list[Any]) -> None:
    said = cli(*command, "--engine", "spark")
    assert said.code == 2
    assert "'spark' is not one of 'local', 'ray'" in said.err


def test_without_ray_the_error_names_the_extra(
    cli: Any, command: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    said = cli(*command, "--engine", "ray")
    assert said.code == 1
    name = command[0]
    assert f"polytask {name} --engine ray needs the Ray library: pip install 'polytask[ray]'" in said.err
    assert not (tmp_path / "out").exists()


def test_an_address_where_nothing_answers(cli: Any, command: list[Any], tmp_path: Path) -> None:
    said = cli(*command, "--engine", "ray", "--address", "127.0.0.1:1")
    assert said.code == 1
    assert "cannot connect to Ray at '127.0.0.1:1'" in said.err
    assert not (tmp_path / "out").exists()


def test_impossible_numbers(cli: Any, command: list[Any]) -> None:
    assert "--workers: must be at least 1, found 0" in cli(*command, "--workers", 0).err
    assert "--cpus-per-cell: must be greater than 0, found 0" in cli(*command, "--engine=ray", "--cpus-per-cell", 0).err


@pytest.mark.parametrize("command", ["compare"], indirect=True)
def test_the_options_are_checked_also_if_nothing_runs(cli: Any, command: list[Any]) -> None:
    for options, message in [
        (["--address", "auto"], "--address requires --engine ray"),
        (["--workers", 0], "--workers: must be at least 1, found 0"),
        (["--engine=ray", "--gpus-per-cell", 1.5], "--gpus-per-cell: must be in [0, 1] or a whole number, found 1.5"),
    ]:
        for nothing in ("--dry-run", "--page-only"):
            said = cli(*command, nothing, *options)
            assert said.code != 0
            assert message in said.err


@pytest.mark.parametrize("option", ["--engine=ray", "--workers=2", "--address=auto", "--gpus-per-cell=1"])
def test_finished_runs_are_compared_without_an_engine(cli: Any, tmp_path: Path, option: str) -> None:
    said = cli("compare", tmp_path, tmp_path, option)
    assert said.code == 2
    assert f"{option.partition('=')[0]} requires a study file; these runs have finished" in said.err
