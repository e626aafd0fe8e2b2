"""polytask add-task: new tasks for a run that has finished."""

from pathlib import Path
from typing import Annotated

import typer

import polytask
from polytask.cli.progress import follow
from polytask.cli.tables import print_finished


def run(
    old: Annotated[
        Path, typer.Argument(metavar="RUN", help="The folder of a run that has finished.", show_default=False)
    ],
    recipe: Annotated[Path, typer.Argument(help="The recipe file (YAML) with the new tasks.", show_default=False)],
    setting: Annotated[
        list[str], typer.Option("--set", metavar="FIELD=VALUE", help="Change a field of the recipe.")
    ] = [],  # noqa: B006
    folder: Annotated[Path | None, typer.Option("--run", help="The new run's folder; left out: runs/NAME.")] = None,
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
    """Add tasks to a run that has finished. The result is a run of its own, with the old tasks and the new ones.

    `add.guarantee: frozen` trains what is new and nothing else: old answers stay as they are, to the bit.
    `measured` trains the encoder too, shows each old task before and after, and saves no model where one falls by more
    than `add.max_drop` points; the command then ends with exit code 1.

    Examples:

        polytask add-task runs/two-tasks recipes/adding/similarity.yaml

        polytask add-task runs/two-tasks recipes/adding/similarity-replay.yaml --set add.max_drop=2 --run runs/three
    """
    adding = polytask.start_adding(old, recipe, folder, setting, resume, allow_change, keep_checkpoints)
    follow(adding)
    finished = adding.finish()
    print_finished(finished)
    if finished.refused is not None:
        raise polytask.UserError(f"no model was saved: {finished.refused}")
