"""polytask add-class: adds a class to a task of a finished run."""

from typing import Annotated

import typer

import polytask
from polytask.cli.options import AllowChange, KeepCheckpoints, NewRunFolder, Resume, RunFolder, Settings, TrustPlugins
from polytask.cli.progress import follow
from polytask.cli.tables import print_finished


def run(
    old: RunFolder,
    task: Annotated[
        str, typer.Option("--task", metavar="TASK", help="The task, of kind classes or multilabel.", show_default=False)
    ],
    new_class: Annotated[
        str, typer.Option("--class", metavar="NAME", help="The new class, as the labels have it.", show_default=False)
    ],
    data: Annotated[
        str,
        typer.Option(
            metavar="FILE",
            help="Rows with the task's columns: those of the new class, and of old classes if you have new ones.",
            show_default=False,
        ),
    ],
    dev: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Rows to evaluate on. Default: a fifth of --data is held back."),
    ] = None,
    setting: Settings = [],  # noqa: B006
    folder: NewRunFolder = None,
    resume: Resume = False,
    allow_change: AllowChange = False,
    keep_checkpoints: KeepCheckpoints = False,
    trust_plugins: TrustPlugins = False,
) -> None:
    """Add a class to a task of a finished run. The result is a new run with the same tasks.

    With `add.guarantee: frozen`, the default, only the new class's weights in the task's head are trained. With
    `measured`, the encoder is trained too. The old rows are evaluated before and after; if the score of one task drops
    by more than `add.max_drop` points, no model is saved and the exit code is 1.

    Examples:

        polytask add-class runs/tickets --task topics --class privacy --data sample:tickets-privacy

        polytask add-class runs/tickets --task topics --class privacy --data new.csv --set add.guarantee=measured
    """
    options = resume, allow_change, keep_checkpoints, trust_plugins
    adding = polytask.start_adding_class(old, task, new_class, data, dev, folder, setting, *options)
    follow(adding)
    finished = adding.finish()
    print_finished(finished)
    if finished.refused is not None:
        raise polytask.UserError(f"no model was saved: {finished.refused}")
