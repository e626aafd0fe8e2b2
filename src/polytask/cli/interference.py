"""polytask interference: train a recipe, and see which of its tasks get in each other's way."""

from pathlib import Path
from typing import Annotated

import typer

import polytask
from polytask.cli.console import plain_console
from polytask.cli.progress import follow
from polytask.cli.tables import interference_table, print_finished


def run(
    recipe: Annotated[Path, typer.Argument(help="The recipe file (YAML).", show_default=False)],
    every: Annotated[
        int | None,
        typer.Option(min=1, help="Steps between probes; left out: as many as keep their cost below a tenth."),
    ] = None,
    setting: Annotated[
        list[str], typer.Option("--set", metavar="FIELD=VALUE", help="Change a field of the recipe.")
    ] = [],  # noqa: B006
    folder: Annotated[
        Path | None, typer.Option("--run", help="The run's folder; left out: runs/NAME-interference.")
    ] = None,
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
    """Train a recipe, comparing its tasks' gradients now and then: which pairs of tasks help or hurt each other.

    The weights are those that `polytask train` gives.

    Examples:

        polytask interference recipes/quickstart.yaml

        polytask interference recipe.yaml --every 10 --run runs/looked-at --set train.epochs=5
    """
    probed = polytask.with_probes(polytask.read_recipe(recipe, setting), every)
    running = polytask.start_training(
        probed, folder or Path("runs") / f"{probed.name}-interference", resume, allow_change, keep_checkpoints
    )
    follow(running)
    finished = running.finish()
    found = finished.summary.interference
    console = plain_console()
    if found is None:
        steps, every = finished.summary.steps, probed.train.interference_every
        console.print(f"No probe was made: the run had {steps} steps, and one was due every {every}.", highlight=False)
    elif found["note"]:
        console.print(found["note"], highlight=False, soft_wrap=True)
    else:
        console.print(interference_table(found))
        for pair in found["pairs"]:
            if pair["verdict"] != "unclear":
                console.print(pair["sentence"], highlight=False, soft_wrap=True)
    print_finished(finished)
