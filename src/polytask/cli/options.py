"""Arguments and options that several commands share, so that they have the same name and help text everywhere."""

from pathlib import Path
from typing import Annotated

import typer

RecipeFile = Annotated[Path, typer.Argument(metavar="RECIPE", help="The recipe file (YAML).", show_default=False)]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of the run.", show_default=False)]
Settings = Annotated[
    list[str],
    typer.Option("--set", metavar="FIELD=VALUE", help="Set a field of the recipe, such as train.epochs=5. Repeatable."),
]
NewRunFolder = Annotated[
    Path | None,
    typer.Option(
        "--run",
        "--run-folder",  # torchrun takes --run for its own --run-path
        metavar="DIR",
        help="The folder of the new run. Default: in runs/, named after the recipe.",
    ),
]
Resume = Annotated[bool, typer.Option("--resume", help="Continue a run that was interrupted.")]
AllowChange = Annotated[
    bool, typer.Option("--allow-change", help="With --resume: accept that the recipe or the data has changed.")
]
KeepCheckpoints = Annotated[
    bool,
    typer.Option(
        "--keep-checkpoints",
        help="Keep the checkpoints after the run has finished (by default only the model and small files are kept).",
    ),
]
TrustPlugins = Annotated[
    bool,
    typer.Option(
        "--trust-plugins",
        help="Remember that the plug-ins may run. They are Python programs: read them first.",
    ),
]
