"""The `polytask` command: registers each command's file, and turns user errors into one message and exit code 1."""

import logging
import sys

import typer

from polytask import UserError, __version__
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

app = typer.Typer(
    name="polytask",
    help="One encoder, many text tasks: train, evaluate and use them from one recipe file.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
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


@app.callback(invoke_without_command=True)
def options(version: bool = typer.Option(False, "--version", help="Show the version and stop.")) -> None:
    if version:
        typer.echo(f"polytask {__version__}")
        raise typer.Exit


def main() -> None:
    """Exit codes: 0 done, 1 something in the files, the recipe or the run is wrong, 2 the command line is wrong."""
    logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.WARNING)
    try:
        app()
    except UserError as error:
        typer.secho("error: ", fg=typer.colors.RED, bold=True, err=True, nl=False)
        typer.echo(str(error), err=True)
        sys.exit(1)
    except BrokenPipeError:
        sys.exit(1)  # the reader of a pipe went away (`polytask methods | head`)
