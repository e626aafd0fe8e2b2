"""The `polytask` command: registers the commands, and shows user errors as one message with exit code 1."""

import errno
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import typer

import polytask
from polytask.cli.console import VisibleGroup, echo, guard_terminal
from polytask.cli.stopping import handled_by, leave

USER_ERRNOS = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EISDIR, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP)
"""Errors of the operating system about a path that the user chose. Others may be bugs."""
COMMANDS = (
    "init",
    "check",
    "pretrain",
    "train",
    "interference",
    "add-task",
    "add-class",
    "evaluate",
    "predict",
    "serve",
    "compare",
    "tune",
    "export",
    "combine",
    "push",
    "report",
    "methods",
    "contract",
    "encoder",
)
"""The commands in the order of the help page; each has a module in polytask/cli."""


def make_app(commands: Sequence[str] = COMMANDS) -> typer.Typer:
    """The command line with these commands; their modules are imported."""
    app = typer.Typer(
        name="polytask",
        cls=VisibleGroup,
        help="One encoder for many text tasks: train, evaluate and use them with one recipe file.",
        no_args_is_help=True,
        add_help_option=len(commands) > 1,  # parsing this option imports pydantic, also for `polytask train --help`
        add_completion=False,
        rich_markup_mode=None,  # with "rich", help pages take twice as long
        pretty_exceptions_enable=False,
        context_settings={"max_content_width": 120},
    )
    # The callback exists for its epilog; `main` handles `--version`: an option here would cost every command 0.1 s.
    app.callback(epilog="`polytask --version` shows the version.")(lambda: None)
    for name in commands:
        module = import_module(f"polytask.cli.{name.replace('-', '_')}")
        app.command(name=name)(module.run)
    return app


def main() -> None:
    """Runs the command line.

    Exit codes: 0 success, 1 an error in the files, the recipe or the run, 2 an error in the command line, 130 after
    Ctrl-C, 143 after SIGTERM.
    """
    if sys.argv[1:] == ["--version"]:
        echo(f"polytask {polytask.__version__}")
        return
    guard_terminal()
    try:
        with handled_by(leave):
            name = sys.argv[1] if len(sys.argv) > 1 else ""
            make_app((name,) if name in COMMANDS else COMMANDS)()
    except SystemExit:
        raise  # the usual end; comparing it with the names below would import them
    except polytask.UserError as error:
        if type(error).__name__ != "ErrorElsewhere":  # the class is in a module that imports torch
            _print_error(str(error))
        sys.exit(1)
    except BrokenPipeError:
        sys.exit(1)  # the reader of a pipe has ended (`polytask methods | head`)
    except OSError as error:
        from polytask.disk.writable import DISK_FULL, unwritable  # noqa: PLC0415  (only for this message)

        if error.errno in DISK_FULL:
            _print_error(str(unwritable(Path(error.filename or "a file"), error)))
        elif error.errno in USER_ERRNOS and error.filename is not None:
            _print_error(f"{os.fsdecode(error.filename)}: {error.strerror}")
        else:
            raise
        sys.exit(1)


def _print_error(message: str) -> None:
    typer.secho("error: ", fg=typer.colors.RED, bold=True, err=True, nl=False)
    echo(message, err=True)
