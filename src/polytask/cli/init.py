"""polytask init: a recipe from the user's own files."""

from pathlib import Path
from typing import Annotated

import typer

import polytask
from polytask.cli.console import echo


def run(
    target: Annotated[Path, typer.Argument(metavar="RECIPE", help="The recipe file to write.")] = Path("recipe.yaml"),
    task: Annotated[list[str], typer.Option("--task", metavar="NAME=FILE", help="A task and its training file.")] = [],  # noqa: B006
    dev: Annotated[
        list[str],
        typer.Option("--dev", metavar="NAME=FILE", help="A task's dev file; left out: looked for, or split off."),
    ] = [],  # noqa: B006
    label: Annotated[
        list[str],
        typer.Option("--label", metavar="NAME=COLUMN", help="A task's label column; left out: guessed."),
    ] = [],  # noqa: B006
    text: Annotated[
        list[str],
        typer.Option(
            "--text", metavar="NAME=COLUMN[,COLUMN]", help="A task's text column, or two for a pair; left out: guessed."
        ),
    ] = [],  # noqa: B006
    force: Annotated[bool, typer.Option("--force", help="Write over a recipe that is there.")] = False,
) -> None:
    """Make a recipe from your own csv, tsv, jsonl, parquet or Excel files, guessing columns and kinds.

    A field that cannot be guessed is left blank in the recipe, for you to fill in.

    Examples:

        polytask init recipe.yaml --task topic=tickets.csv --task urgent=urgent.tsv

        polytask init recipe.yaml --task mood=train.csv --dev mood=dev.csv

        polytask init recipe.yaml --task topic=book.xlsx#Tickets --label topic=Team --text topic=Subject,Body
    """
    from polytask.disk.atomic import write_atomically  # noqa: PLC0415  (every command's --help imports this file)
    from polytask.disk.writable import check_target  # noqa: PLC0415

    check_target(target)
    if target.exists() and not force:
        raise polytask.UserError(f"{target}: is there already; choose another name, or write over it with --force")
    texts = {name: columns.split(",") for name, columns in pairs("--text", text, "COLUMN[,COLUMN]").items()}
    labels = pairs("--label", label, "COLUMN")
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
            f"Fill in the blanks in {target}, or run init again with --label or --text (and --force); until then the "
            "recipe is refused"
        )
    echo(f"Next: polytask check {target}, then polytask train {target}")


def pairs(option: str, values: list[str], what: str = "FILE") -> dict[str, str]:
    """NAME=FILE options as a mapping."""
    found: dict[str, str] = {}
    for value in values:
        name, equals, given = value.partition("=")
        if not (name and equals and given):
            raise typer.BadParameter(f"{option} {value}: expected NAME={what}")
        if name in found:
            raise typer.BadParameter(f"{option} {name}: given twice")
        found[name] = given
    return found
