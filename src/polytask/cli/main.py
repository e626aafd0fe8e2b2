"""The `polytask` command: registers each command's file, and turns user errors into one message and exit code 1."""

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

REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EISDIR, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP)
"""What a disk refuses of a name that the user gave. Any other error of the system may be a mistake of ours."""

app = typer.Typer(
    name="polytask",
    cls=VisibleGroup,
    help="One encoder, many text tasks: train, evaluate and use them from one recipe file.",
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
    """Read by `--help`; `main` answers `--version`, because an option here would cost every command 0.1 s."""


def main() -> None:
    """Exit codes: 0 done, 1 something in the files, the recipe or the run is wrong, 2 the command line is wrong.

    130 after Ctrl-C, 143 after SIGTERM.
    """
    if sys.argv[1:] == ["--version"]:
        echo(f"polytask {polytask.__version__}")
        return
    guard_terminal()
    try:
        with handled_by(leave):
            app()
    except SystemExit:
        raise  # the usual end: the names below would be imported to be compared with it
    except polytask.UserError as error:
        _say(str(error))
        sys.exit(1)
    except BrokenPipeError:
        sys.exit(1)  # the reader of a pipe went away (`polytask methods | head`)
    except OSError as error:
        from polytask.disk.writable import DISK_FULL, unwritable  # noqa: PLC0415  (only for this message)

        if error.errno in DISK_FULL:
            _say(str(unwritable(Path(error.filename or "a file"), error)))
        elif error.errno in REFUSED and error.filename is not None:
            _say(f"{os.fsdecode(error.filename)}: {error.strerror}")
        else:
            raise
        sys.exit(1)


def _say(error: str) -> None:
    typer.secho("error: ", fg=typer.colors.RED, bold=True, err=True, nl=False)
    echo(error, err=True)
