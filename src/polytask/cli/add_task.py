"""polytask add-task: adds tasks to a finished run."""

from pathlib import Path
from typing import Annotated

import typer

import polytask
from polytask.cli.options import AllowChange, KeepCheckpoints, NewRunFolder, Resume, RunFolder, Settings, TrustPlugins
from polytask.cli.progress import follow
from polytask.cli.tables import print_finished


def run(
    old: RunFolder,
    recipe: Annotated[
        Path, typer.Argument(metavar="RECIPE", help="The recipe file (YAML) with the new tasks.", show_default=False)
    ],
    setting: Settings = [],  # noqa: B006
    folder: NewRunFolder = None,
    resume: Resume = False,
    allow_change: AllowChange = False,
    keep_checkpoints: KeepCheckpoints = False,
    trust_plugins: TrustPlugins = False,
) -> None:
    """Add tasks to a finished run. The result is a new run with the old and the new tasks.

    With `add.guarantee: frozen`, only the new tasks' parameters are trained: the old tasks' predictions stay
    bit-identical. With `measured`, the encoder is trained too, and the old tasks are evaluated before and after. If
    one of them drops by more than `add.max_drop` points, no model is saved and the exit code is 1.

    Examples:

        polytask add-task runs/two-tasks recipes/adding/similarity.yaml

        polytask add-task runs/two-tasks recipes/adding/similarity-replay.yaml --set add.max_drop=2 --run runs/three
    """
    options = resume, allow_change, keep_checkpoints, trust_plugins
    adding = polytask.start_adding(old, recipe, folder, setting, *options)
    follow(adding)
    finished = adding.finish()
    print_finished(finished)
    if finished.refused is not None:
        raise polytask.UserError(f"no model was saved: {finished.refused}")
