"""polytask pretrain: an encoder that has read the tasks' texts, before it learns the tasks."""

from pathlib import Path
from typing import Annotated

import typer

import polytask
from polytask.cli.console import echo
from polytask.cli.progress import follow
from polytask.cli.tables import print_finished


def run(
    recipe: Annotated[Path, typer.Argument(help="The recipe file (YAML).", show_default=False)],
    text: Annotated[
        list[str],
        typer.Option(metavar="FILE:COLUMN", help="Text to learn from, in place of that of the recipe's tasks."),
    ] = [],  # noqa: B006
    own: Annotated[bool, typer.Option("--own", help="With --text: the text of the recipe's tasks too.")] = False,
    setting: Annotated[
        list[str], typer.Option("--set", metavar="FIELD=VALUE", help="Change a field of the recipe.")
    ] = [],  # noqa: B006
    folder: Annotated[
        Path | None, typer.Option("--run", help="The run's folder; left out: runs/NAME-pretrained.")
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
    """Train a recipe's encoder further on plain text, as a masked language model. The result is an encoder.

    Examples:

        polytask pretrain recipes/quickstart.yaml

        polytask pretrain recipe.yaml --text reviews.parquet:text --own --set train.epochs=10 --set optimizer.lr=1e-4

        polytask train recipe.yaml --set encoder=runs/recipe-pretrained/model
    """
    content = polytask.read_recipe(recipe, setting)
    running = polytask.start_pretraining(content, folder, text, own or None, resume, allow_change, keep_checkpoints)
    follow(running)
    result = polytask.Pretrained.of(running.finish())
    print_finished(result.finished)
    before = "" if result.before is None else f"{result.before.value:.1f} before, "
    echo(
        f"perplexity on held-out text: {before}{result.after.value:.1f} after\n"
        f"Next: polytask train {recipe} --set encoder={result.encoder}"
    )
