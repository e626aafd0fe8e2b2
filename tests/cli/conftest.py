"""Runs the command in this process: exit code, output, errors."""

import sys
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from polytask.cli.main import main


@dataclass(frozen=True)
class Said:
    code: int
    out: str
    err: str


Cli = Callable[..., Said]


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    def run(*arguments: object) -> Said:
        monkeypatch.setattr(sys, "argv", ["polytask", *map(str, arguments)])
        monkeypatch.setenv("COLUMNS", "200")
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else 1
        captured = capsys.readouterr()
        return Said(code, captured.out, captured.err)

    return run
