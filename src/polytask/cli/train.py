"""polytask train: trains a recipe and writes a run folder."""

import time

import polytask
from polytask.cli.cuda import start_cuda
from polytask.cli.options import AllowChange, KeepCheckpoints, NewRunFolder, RecipeFile, Resume, Settings, TrustPlugins
from polytask.cli.progress import follow
from polytask.cli.tables import print_finished
from polytask.types import errors_in


def run(
    recipe: RecipeFile,
    setting: Settings = [],  # noqa: B006
    folder: NewRunFolder = None,
    resume: Resume = False,
    allow_change: AllowChange = False,
    keep_checkpoints: KeepCheckpoints = False,
    trust_plugins: TrustPlugins = False,
) -> None:
    """Train all tasks of a recipe on one encoder.

    Ctrl-C and SIGTERM stop the run after the current step and save a checkpoint; `--resume` continues from there.

    Examples:

        polytask train recipes/quickstart.yaml

        polytask train recipe.yaml --set train.epochs=5 --set optimizer.lr=3e-5 --run runs/longer

        polytask train recipe.yaml --resume
    """
    began = time.perf_counter()
    content = polytask.read_recipe(recipe, setting)
    start_cuda(content.train.device)
    start = polytask.start_training  # imports PyTorch
    imports = time.perf_counter() - began
    with errors_in(recipe):
        running = start(content, folder, resume, allow_change, keep_checkpoints, trust_plugins)
    running.phases.seconds = {"imports": imports, **running.phases.seconds}
    follow(running)
    print_finished(running.finish())
