"""The command as a whole: help, version, exit codes, errors without a traceback."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import polytask


def test_version_and_help(cli: Any) -> None:
    assert cli("--version").out.strip() == f"polytask {polytask.__version__}"
    said = cli("--help")
    assert said.code == 0
    for command in ("init", "check", "train", "evaluate", "predict", "compare", "report", "methods", "encoder"):
        assert command in said.out
        assert "Example" in cli(command, "--help").out


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["frobnicate"], 2),
        (["train"], 2),
        (["predict", "runs/none", "--task", "x"], 2),
        (["train", "no-such-file.yaml"], 1),
        (["predict", "no-such-run", "--task", "x", "--text", "y"], 1),
        (["evaluate", "no-such-run"], 1),
        (["report", "no-such-run"], 1),
        (["methods", "nothing"], 1),
    ],
)
def test_exit_codes_and_no_traceback(cli: Any, arguments: list[str], code: int) -> None:
    said = cli(*arguments)
    assert said.code == code
    assert said.err
    assert "Traceback" not in said.err + said.out


def test_a_real_process_too(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "polytask", "check", str(tmp_path / "none.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "none.yaml: the recipe cannot be read: No such file or directory" in done.stderr
    assert "Traceback" not in done.stderr
