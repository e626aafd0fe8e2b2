"""The `polytask` command: registers the commands, and shows user errors as one message with exit code 1."""

import errno
import os
import sys
from pathlib import Path

import typer

import polytask
from polytask.cli import (
    add_task,
    check,
    combine,
    compare,
    encoder,
    evaluate,
    export,
    init,
    interference,
    methods,
    predict,
    pretrain,
    report,
    train,
)
from polytask.cli.console import VisibleGroup, echo, guard_terminal
from polytask.cli.stopping import handled_by, leave

USER_ERRNOS = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EISDIR, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP)
"""Errors of the operating system about a path that the user chose. Others may be bugs."""

app = typer.Typer(
    name="polytask",
    cls=VisibleGroup,
    help="One encoder for many text tasks: train, evaluate and use them with one recipe file.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)

COMMANDS = (
    init,
    check,
    pretrain,
    train,
    interference,
    add_task,
    evaluate,
    predict,
    compare,
    export,
    combine,
    report,
    methods,
    encoder,
)
for command in COMMANDS:
    app.command(name=command.__name__.rpartition(".")[2].replace("_", "-"))(command.run)


@app.callback(epilog="`polytask --version` shows the version.")
def options() -> None:
    """Exists for the epilog; `main` handles `--version`, because an option here would cost every command 0.1 s."""


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
            app()
    except SystemExit:
        raise  # the usual end; comparing it with the names below would import them
    except polytask.UserError as error:
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
