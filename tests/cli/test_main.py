"""The command as a whole: help, version, exit codes, errors without a traceback."""

import errno
import runpy
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from typer.models import OptionInfo

import polytask
from polytask.cli.main import COMMANDS


def test_version_and_help(cli: Any) -> None:
    assert cli("--version").out.strip() == f"polytask {polytask.__version__}"
    said = cli("--help")
    assert said.code == 0
    for command in ("init", "check", "train", "evaluate", "predict", "compare", "report", "methods", "encoder"):
        assert command in said.out
        assert "Example" in cli(command, "--help").out


@pytest.mark.parametrize("command", COMMANDS)
def test_options_have_the_same_names_with_every_typer(command: str) -> None:
    """Typer 0.27 names an option without a name after its metavar, if that is the parameter's name in capitals."""
    run = import_module(f"polytask.cli.{command.replace('-', '_')}").run
    for name, hint in get_type_hints(run, include_extras=True).items():
        for option in getattr(hint, "__metadata__", ()):
            named = isinstance(option, OptionInfo) and str(option.default).startswith("-")
            if isinstance(option, OptionInfo) and not named and option.metavar is not None:
                assert option.metavar.lower() != name.lower(), f"{command}: name the option --{name}"


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


def test_a_separate_process_prints_the_message(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "polytask", "check", str(tmp_path / "none.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "none.yaml: the recipe cannot be read: No such file or directory" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            OSError(errno.ENOSPC, "No space left", "a/b"),
            "a/b: cannot be written: No space left; free some space",
        ),
        (OSError(errno.EDQUOT, "Quota exceeded"), "a file: cannot be written: Quota exceeded; free some space"),
        (PermissionError(errno.EACCES, "Permission denied", "a/b"), "a/b: Permission denied"),
        (OSError(errno.EROFS, "Read-only file system", b"a/b"), "a/b: Read-only file system"),
    ],
)
def test_errors_of_the_disk_become_messages(
    cli: Any, monkeypatch: pytest.MonkeyPatch, error: OSError, message: str
) -> None:
    def refuse() -> None:
        raise error

    monkeypatch.setattr("polytask.cli.main.make_app", lambda names: refuse)
    said = cli("report", "x")
    assert said.code == 1
    assert said.err.startswith(f"error: {message}")


def test_other_errors_of_the_system_may_be_bugs(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise FileNotFoundError(errno.ENOENT, "No such file", "lost")

    monkeypatch.setattr("polytask.cli.main.make_app", lambda names: fail)
    with pytest.raises(FileNotFoundError, match="lost"):
        cli("report", "x")


def test_as_a_module_it_takes_the_working_directory_off_the_search_path(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    monkeypatch.setattr("polytask.cli.main.main", lambda: seen.extend(sys.path))
    monkeypatch.setattr(sys, "path", ["/put/there/by/python", *sys.path])
    runpy.run_module("polytask", run_name="__main__")
    assert ("/put/there/by/python" in seen) == sys.flags.safe_path  # with -P it was not put there
    assert len(seen) >= len(sys.path)
