"""polytask check: everything a run needs, looked at before it starts."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from polytask import Prepared, describe_task, prepare, read_recipe


def run(
    recipe: Annotated[Path, typer.Argument(help="The recipe file (YAML).", show_default=False)],
    setting: Annotated[
        list[str], typer.Option("--set", metavar="FIELD=VALUE", help="Change a field of the recipe.")
    ] = [],  # noqa: B006
) -> None:
    """Read a recipe and its data, make the model, and say what would be trained. Nothing is trained or written.

    Example:

        polytask check recipes/quickstart.yaml
    """
    prepared = prepare(read_recipe(recipe, setting))
    console = Console()
    console.print(data_table(prepared))
    console.print(budget_table(prepared))
    train = prepared.recipe.train
    steps = train.epochs * prepared.steps_per_epoch
    console.print(
        f"{train.epochs} epochs of {prepared.steps_per_epoch:,} steps: {steps:,} steps of "
        f"{train.batch_size * train.accumulate} examples. The recipe is good.",
        highlight=False,
        soft_wrap=True,
    )


def data_table(prepared: Prepared) -> Table:
    table = Table(title="Data", title_justify="left")
    for column in ("task", "kind", "split", "rows", "skipped", "labels", "tokens", "too long"):
        table.add_column(column, justify="right" if column in ("rows", "skipped", "tokens", "too long") else "left")
    for name, task in prepared.tasks.items():
        about = describe_task(task, prepared)
        for split, data in about["data"].items():
            row = (f"{data['rows']:,}", f"{data['skipped']:,}", balance(data["labels"]))
            lengths = data["lengths"]
            table.add_row(name, about["kind"], split, *row, f"{lengths['mean']:.1f}", f"{lengths['truncated']:,}")
    return table


def balance(labels: Mapping[str, Any]) -> str:
    """`5 classes, 90 to 210 rows each`, `no 60, yes 60`, `0 to 5`, or `none` for plain text."""
    if not labels:
        return "none"
    if "edges" in labels:
        return f"{labels['edges'][0]:g} to {labels['edges'][-1]:g}"
    names, counts = labels["names"], labels["counts"]
    if len(names) == 2:
        return ", ".join(f"{name} {count:,}" for name, count in zip(names, counts, strict=True))
    spread = f"{min(counts):,}" if min(counts) == max(counts) else f"{min(counts):,} to {max(counts):,}"
    return f"{len(names)} classes, {spread} rows each"


def budget_table(prepared: Prepared) -> Table:
    budget = prepared.model.budget()
    table = Table(title="Parameters", title_justify="left")
    table.add_column("part")
    table.add_column("parameters", justify="right")
    table.add_row("shared: trunk", f"{budget['trunk']:,}")
    table.add_row("shared: adapter", f"{budget['adapter_shared']:,}")
    for task, count in budget["per_task"].items():
        table.add_row(f"only {task}", f"{count:,}")
    table.add_row("all", f"{budget['total']:,}", style="bold")
    table.add_row("that learn", f"{budget['trainable']:,}")
    return table
