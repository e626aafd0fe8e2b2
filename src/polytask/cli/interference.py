"""polytask interference: trains a recipe and shows which of its tasks conflict."""

from pathlib import Path
from typing import Annotated

import typer

import polytask
from polytask.cli.console import plain_console
from polytask.cli.options import AllowChange, KeepCheckpoints, NewRunFolder, RecipeFile, Resume, Settings, TrustPlugins
from polytask.cli.progress import follow
from polytask.cli.tables import interference_table, print_finished
from polytask.types import errors_in


def run(
    recipe: RecipeFile,
    every: Annotated[
        int | None,
        typer.Option(min=1, help="Steps between probes. Default: so many that probes take less than 10 % of the time."),
    ] = None,
    setting: Settings = [],  # noqa: B006
    folder: NewRunFolder = None,
    resume: Resume = False,
    allow_change: AllowChange = False,
    keep_checkpoints: KeepCheckpoints = False,
    trust_plugins: TrustPlugins = False,
) -> None:
    """Train a recipe and show, for every pair of tasks, whether their gradients agree or conflict.

    The weights are the same as those of `polytask train`. The run's folder is runs/NAME-interference by default.

    Examples:

        polytask interference recipes/quickstart.yaml

        polytask interference recipe.yaml --every 10 --run runs/probed --set train.epochs=5
    """
    content = polytask.read_recipe(recipe, setting)
    for plugin in content.plugins if trust_plugins else ():
        polytask.trust_plugin(plugin)
    with errors_in(recipe):
        probed = polytask.with_probes(content, every)
        running = polytask.start_training(
            probed, folder or Path("runs") / f"{probed.name}-interference", resume, allow_change, keep_checkpoints
        )
    follow(running)
    finished = running.finish()
    if not running.is_main:
        return
    result = finished.summary.interference
    console = plain_console()
    if result is None:
        steps, every = finished.summary.steps, probed.train.interference_every
        console.print(
            f"There was no probe: the run had {steps} steps, and a probe was due every {every} steps.", highlight=False
        )
    elif result["note"]:
        console.print(result["note"], highlight=False, soft_wrap=True)
    else:
        console.print(interference_table(result))
        for pair in result["pairs"]:
            if pair["verdict"] != "unclear":
                console.print(pair["sentence"], highlight=False, soft_wrap=True)
    print_finished(finished)
