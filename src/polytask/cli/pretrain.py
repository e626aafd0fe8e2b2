"""polytask pretrain: trains an encoder, or the model of a finished run, as a masked language model on plain text."""

from pathlib import Path
from typing import Annotated

import typer

import polytask
from polytask.cli.console import echo
from polytask.cli.options import AllowChange, KeepCheckpoints, NewRunFolder, RecipeFile, Resume, Settings, TrustPlugins
from polytask.cli.progress import follow
from polytask.cli.tables import print_finished
from polytask.types import errors_in


def run(
    recipe: RecipeFile,
    text: Annotated[
        list[str],
        typer.Option(metavar="FILE:COLUMN", help="Texts to train on instead of the recipe's texts. Repeatable."),
    ] = [],  # noqa: B006
    own: Annotated[bool, typer.Option("--own", help="With --text: also use the recipe's texts.")] = False,
    start: Annotated[
        Path | None,
        typer.Option(metavar="RUN", help="A finished run to start from. Its tasks, heads and adapters are kept."),
    ] = None,
    setting: Settings = [],  # noqa: B006
    folder: NewRunFolder = None,
    resume: Resume = False,
    allow_change: AllowChange = False,
    keep_checkpoints: KeepCheckpoints = False,
    trust_plugins: TrustPlugins = False,
) -> None:
    """Continue the pretraining of a recipe's encoder on plain text, as a masked language model.

    By default the texts are those of the recipe's tasks, and the run's folder is runs/NAME-pretrained.

    With --start, the model of a finished run is trained further instead of the recipe's encoder. The new run has all
    tasks of that run, with their heads and adapters unchanged, and shows their dev scores before and after.

    Examples:

        polytask pretrain recipes/quickstart.yaml

        polytask pretrain recipe.yaml --text reviews.parquet:text --own --set train.epochs=10 --set optimizer.lr=1e-4

        polytask train recipe.yaml --set encoder=runs/recipe-pretrained/model

        polytask pretrain recipe.yaml --start runs/recipe --set train.epochs=1 --run runs/recipe-mlm-after
    """
    content = polytask.read_recipe(recipe, setting)
    with errors_in(recipe):
        running = polytask.start_pretraining(
            content, folder, text, own or None, resume, allow_change, keep_checkpoints, start, trust_plugins
        )
    follow(running)
    result = polytask.Pretrained.of(running.finish())
    print_finished(result.finished)
    before = "" if result.before is None else f"{result.before.value:.1f} before, "
    after = f"polytask train {recipe} --set encoder={result.encoder}"
    if start is not None:
        after = f"polytask evaluate {result.finished.folder}"
    echo(f"perplexity on held-out text: {before}{result.after.value:.1f} after\nNext: {after}")
