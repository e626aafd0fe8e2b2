"""polytask train: trains a recipe and writes a run folder."""

import polytask
from polytask.cli.options import AllowChange, KeepCheckpoints, NewRunFolder, RecipeFile, Resume, Settings
from polytask.cli.progress import follow
from polytask.cli.tables import print_finished


def run(
    recipe: RecipeFile,
    setting: Settings = [],  # noqa: B006
    folder: NewRunFolder = None,
    resume: Resume = False,
    allow_change: AllowChange = False,
    keep_checkpoints: KeepCheckpoints = False,
) -> None:
    """Train all tasks of a recipe on one encoder.

    Ctrl-C and SIGTERM stop the run after the current step and save a checkpoint; `--resume` continues from there.

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
