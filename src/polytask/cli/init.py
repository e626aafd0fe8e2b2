"""polytask init: writes a recipe for the user's own files."""

from pathlib import Path
from typing import Annotated

import typer

import polytask
from polytask.cli.console import echo


def run(
    target: Annotated[Path, typer.Argument(metavar="RECIPE", help="The recipe file to write.")] = Path("recipe.yaml"),
    task: Annotated[
        list[str],
        typer.Option("--task", metavar="NAME=FILE", help="A task and its training file. Repeatable."),
    ] = [],  # noqa: B006
    dev: Annotated[
        list[str],
        typer.Option("--dev", metavar="NAME=FILE", help="A task's dev file. Default: guessed, or split off."),
    ] = [],  # noqa: B006
    label: Annotated[
        list[str],
        typer.Option(
            "--label",
            metavar="NAME=COLUMN[,COLUMN]",
            help="A task's label column, or several columns of 0 and 1, which are its classes. Default: guessed.",
        ),
    ] = [],  # noqa: B006
    text: Annotated[
        list[str],
        typer.Option(
            "--text",
            metavar="NAME=COLUMN[,COLUMN]",
            help="A task's text column, or several that belong together. Default: guessed, at most a pair.",
        ),
    ] = [],  # noqa: B006
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing recipe.")] = False,
) -> None:
    """Write a recipe for your own csv, tsv, jsonl, parquet or Excel files.

    Columns and kinds of labels are guessed from the files. A field that cannot be guessed is left blank in the recipe,
    for you to fill in.

    Examples:

        polytask init recipe.yaml --task topic=tickets.csv --task urgent=urgent.tsv

        polytask init recipe.yaml --task mood=train.csv --dev mood=dev.csv

        polytask init recipe.yaml --task topic=book.xlsx#Tickets --label topic=Team --text topic=Subject,Body
    """
    from polytask.disk.atomic import write_atomically  # noqa: PLC0415  (every command's --help imports this file)
    from polytask.disk.writable import check_target  # noqa: PLC0415

    check_target(target)
    if target.exists() and not force:
        raise polytask.UserError(f"{target}: already exists; choose another name, or pass --force to overwrite it")
    texts = {name: columns.split(",") for name, columns in pairs("--text", text, "COLUMN[,COLUMN]").items()}
    labels = {name: columns.split(",") for name, columns in pairs("--label", label, "COLUMN[,COLUMN]").items()}
    starter = polytask.start_recipe(target, pairs("--task", task), pairs("--dev", dev), labels, texts)
    write_atomically(target, starter.text)
    for name, reasons in starter.reasons.items():
        echo(f"{name}:")
        for reason in reasons:
            echo(f"  {reason}")
    echo(f"\nWritten: {target}")
    for blank in starter.blanks:
        echo(f"Left blank: {blank}")
    if starter.blanks:
        echo(
            f"Fill in the blank fields in {target}, or run init again with --label or --text (and --force), before you "
            "use the recipe"
        )
    echo(f"Next: polytask check {target}, then polytask train {target}")


def pairs(option: str, values: list[str], what: str = "FILE") -> dict[str, str]:
    """The values of a repeatable NAME=FILE option as a mapping."""
    by_name: dict[str, str] = {}
    for value in values:
        name, equals, given = value.partition("=")
        if not (name and equals and given):
            raise typer.BadParameter(f"{option} {value}: must be NAME={what}")
        if name in by_name:
            raise typer.BadParameter(f"{option} {name}: can be given only once")
        by_name[name] = given
    return by_name
