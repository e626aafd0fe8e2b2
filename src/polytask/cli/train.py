"""polytask train: a recipe in, a run folder out."""

from pathlib import Path
from typing import Annotated

import typer

import polytask
from polytask.cli.progress import follow
from polytask.cli.tables import print_finished


def run(
    recipe: Annotated[Path, typer.Argument(help="The recipe file (YAML).", show_default=False)],
    setting: Annotated[
        list[str], typer.Option("--set", metavar="FIELD=VALUE", help="Change a field of the recipe.")
    ] = [],  # noqa: B006
    folder: Annotated[Path | None, typer.Option("--run", help="The run's folder; left out: runs/NAME.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a run that was stopped.")] = False,
    allow_change: Annotated[
        bool, typer.Option("--allow-change", help="With --resume: also if the recipe or the data has changed.")
    ] = False,
    keep_checkpoints: Annotated[
        bool,
        typer.Option(
            "--keep-checkpoints",
            help="Keep the checkpoints after the run has finished (by default only the model and small files stay).",
        ),
    ] = False,
) -> None:
    """Train every task of a recipe on one encoder.

    SIGTERM and Ctrl-C end it after the step under way, with a checkpoint; `--resume` goes on from there.

    Examples:

        polytask train recipes/quickstart.yaml

        polytask train recipe.yaml --set train.epochs=5 --set optimizer.lr=3e-5 --run runs/longer

        polytask train recipe.yaml --resume
    """
    running = polytask.start_training(
        polytask.read_recipe(recipe, setting), folder, resume, allow_change, keep_checkpoints
    )
    follow(running)
    print_finished(running.finish())
