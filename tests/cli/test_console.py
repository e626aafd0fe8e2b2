"""The border to the terminal: our own colours go through, control characters from files do not."""

import io
import logging
import re
import sys
import warnings
from typing import Any

import pytest
from rich.progress import Progress, TextColumn
from rich.table import Table
from rich.text import Text

from polytask.cli import console as border
from polytask.cli.console import VisibleConsole, echo

EVIL = "\x1b[2J\x1b]0;title\x07\u202eevil\x9b1m\r"
SHOWN = r"\x1b[2J\x1b]0;title\x07\u202eevil\x9b1m\r"


def terminal() -> VisibleConsole:
    return VisibleConsole(
        file=io.StringIO(), force_terminal=True, width=200, markup=False, color_system="standard", legacy_windows=False
    )


def written(console: VisibleConsole) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_our_own_colours_go_through_and_those_of_names_do_not() -> None:
    console = terminal()
    console.print(EVIL, style="bold red", highlight=False)
    assert written(console) == f"\x1b[1;31m{SHOWN}\x1b[0m\n"


def test_tables_are_as_wide_as_what_is_shown() -> None:
    console = terminal()
    table = Table(title=EVIL)
    table.add_column(EVIL)
    table.add_row(EVIL)
    console.print(table)
    said = re.sub(r"\x1b\[[\d;]*m", "", written(console))
    assert said.count(SHOWN) == 3
    assert "\x1b" not in said
    lines = said.splitlines()[1:]  # without the title
    assert len({len(line) for line in lines}) == 1


def test_ready_made_texts_are_shown_too() -> None:
    console = terminal()
    console.print(Text(EVIL))
    assert written(console) == SHOWN.removesuffix(r"\r").replace(r"\x07", "") + "\n"  # rich itself drops some


def test_a_live_bar_shows_them_too() -> None:
    console = terminal()
    with Progress(TextColumn("{task.description}", markup=False), console=console) as bar:
        bar.add_task(EVIL.replace("\r", ""))
        bar.console.print(EVIL)
    said = written(console)
    assert r"\x1b[2J" in said
    assert "\x1b[2J" not in said
    assert "\u202e" not in said
    assert "\x1b[?25l" in said  # the bar's own order, which hides the cursor


def test_echo(capsys: pytest.CaptureFixture[str]) -> None:
    echo(f"a\n\tb {EVIL}", err=True)
    assert capsys.readouterr().err == f"a\n\tb {SHOWN}\n"


@pytest.mark.parametrize("arguments", [[EVIL], ["train", "a", EVIL], ["train", f"--{EVIL}"], ["init", "--task", EVIL]])
def test_messages_about_the_command_line(cli: Any, arguments: list[str]) -> None:
    said = cli(*arguments)
    assert said.code == 2
    assert r"\u202eevil" in said.err
    assert "\x1b[2J" not in said.err
    assert "\u202e" not in said.err


def test_log_lines_and_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    record = logging.LogRecord("polytask", logging.WARNING, "", 0, "%s is damaged", (EVIL,), None)
    assert border._VisibleFormatter("%(levelname)s: %(message)s").format(record) == f"WARNING: {SHOWN} is damaged"
    border.guard_terminal()
    assert SHOWN in warnings.formatwarning(EVIL, UserWarning, "file.py", 1)
    assert sys.excepthook is border._print_traceback


def test_the_traceback_of_a_bug(capsys: pytest.CaptureFixture[str]) -> None:
    try:
        raise RuntimeError(EVIL)
    except RuntimeError as error:
        border._print_traceback(type(error), error, error.__traceback__)
    said = capsys.readouterr().err
    assert said.startswith("Traceback (most recent call last):\n")
    assert said.endswith(f"RuntimeError: {SHOWN}\n")
