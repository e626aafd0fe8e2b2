"""polytask train: trains a recipe and writes a run folder."""

import os
import time
from typing import Annotated

import typer

import polytask
from polytask.child_processes import end_with_parent
from polytask.cli.cuda import start_cuda
from polytask.cli.options import AllowChange, KeepCheckpoints, NewRunFolder, RecipeFile, Resume, Settings, TrustPlugins
from polytask.cli.progress import follow
from polytask.cli.tables import print_finished
from polytask.launch import launch
from polytask.types import errors_in


def run(
    recipe: RecipeFile,
    setting: Settings = [],  # noqa: B006
    folder: NewRunFolder = None,
    resume: Resume = False,
    allow_change: AllowChange = False,
    keep_checkpoints: KeepCheckpoints = False,
    trust_plugins: TrustPlugins = False,
    processes: Annotated[
        int,
        typer.Option(
            min=1, help="Let this number of processes divide every step: one per GPU, or several on the CPU's cores."
        ),
    ] = 1,
) -> None:
    """Train all tasks of a recipe on one encoder.

    Ctrl-C and SIGTERM stop the run after the current step and save a checkpoint; `--resume` continues from there.

    On several machines, start it with torchrun, which takes `--run` for an option of its own: use `--run-folder`.

    Examples:

        polytask train recipes/quickstart.yaml

        polytask train recipe.yaml --set train.epochs=5 --set optimizer.lr=3e-5 --run runs/longer

        polytask train recipe.yaml --resume

        polytask train recipe.yaml --processes 2

        torchrun --nproc-per-node 2 -m polytask train recipe.yaml --run-folder runs/mine
    """
    began = time.perf_counter()
    if "TORCHELASTIC_RUN_ID" in os.environ:
        end_with_parent()  # without torchrun, nobody would stop the processes that it has started
    if processes > 1:
        polytask.read_recipe(recipe, setting)  # an error in it is shown once
        options = {"--resume": resume, "--allow-change": allow_change}
        options |= {"--keep-checkpoints": keep_checkpoints, "--trust-plugins": trust_plugins}
        arguments = ["train", str(recipe), *(f"--set={one}" for one in setting)]
        arguments += [] if folder is None else [f"--run={folder}"]
        launch(processes, [*arguments, *(name for name, given in options.items() if given)])
        return
    content = polytask.read_recipe(recipe, setting)
    start_cuda(content.train.device)
    start = polytask.start_training  # imports PyTorch
    imports = time.perf_counter() - began
    with errors_in(recipe):
        running = start(content, folder, resume, allow_change, keep_checkpoints, trust_plugins)
    running.phases.seconds = {"imports": imports, **running.phases.seconds}
    follow(running)
    finished = running.finish()
    if running.is_main:
        print_finished(finished)
