"""polytask check: everything a run needs, looked at before it starts."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

import polytask
from polytask.cli.console import plain_console

TITLES = {
    "problem": ("Problems: scores would mislead, or nothing can be learned", "bold red"),
    "warning": ("Warnings: likely a mistake", "bold yellow"),
    "note": ("Notes: good to know", "bold"),
}


def run(
    recipe: Annotated[Path, typer.Argument(help="The recipe file (YAML).", show_default=False)],
    setting: Annotated[
        list[str], typer.Option("--set", metavar="FIELD=VALUE", help="Change a field of the recipe.")
    ] = [],  # noqa: B006
    strict: Annotated[bool, typer.Option("--strict", help="Problems of the data are an error (exit code 1).")] = False,
) -> None:
    """Read a recipe and its data, make the model, and say what would be trained. Nothing is trained or written.

    Says what is odd about the data too, with row numbers: docs/data.md explains every finding.

    Examples:

        polytask check recipes/quickstart.yaml

        polytask check recipes/quickstart.yaml --strict
    """
    prepared = polytask.rehearse(polytask.read_recipe(recipe, setting))
    console = plain_console()
    console.print(data_table(prepared))
    found = prepared.findings()
    print_findings(found, console)
    console.print(budget_table(prepared))
    train = prepared.recipe.train
    steps = train.epochs * prepared.steps_per_epoch
    problems = sum(finding.severity == "problem" for finding in found)
    verdict = f"the data has {problems} {'problem' if problems == 1 else 'problems'}"
    console.print(
        f"{train.epochs} epochs of {prepared.steps_per_epoch:,} steps: {steps:,} steps of "
        f"{train.batch_size * train.accumulate} examples. The recipe is good{f', but {verdict}' if problems else ''}.",
        highlight=False,
        soft_wrap=True,
    )
    if strict and problems:
        raise polytask.UserError(f"{recipe}: {verdict}, listed above")


def print_findings(findings: Sequence["polytask.Finding"], console: Console) -> None:
    """Grouped by severity, the worst first; without any, nothing."""
    for severity, (title, style) in TITLES.items():
        found = [finding for finding in findings if finding.severity == severity]
        if found:
            console.print(title, style=style, highlight=False)
            for finding in found:
                console.print(f"  {finding}", highlight=False, soft_wrap=True)
    if any(finding.rows for finding in findings):
        console.print("Row numbers count a file's lines, the header being line 1.", style="dim", highlight=False)


def data_table(prepared: "polytask.Prepared") -> Table:
    table = Table(title="Data", title_justify="left")
    for column in ("task", "kind", "split", "rows", "skipped", "labels", "tokens", "too long"):
        table.add_column(column, justify="right" if column in ("rows", "skipped", "tokens", "too long") else "left")
    for name, task in prepared.tasks.items():
        about = polytask.describe_task(task, prepared)
        for split, data in about.data.items():
            row = (f"{data['rows']:,}", f"{data['skipped']:,}", balance(data["labels"]))
            lengths = data["lengths"]
            table.add_row(name, about.kind, split, *row, f"{lengths['mean']:.1f}", f"{lengths['truncated']:,}")
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


def budget_table(prepared: "polytask.Prepared") -> Table:
    budget = prepared.model.budget()
    table = Table(title="Parameters", title_justify="left")
    table.add_column("part")
    table.add_column("parameters", justify="right")
    table.add_row("shared: encoder", f"{budget['encoder']:,}")
    table.add_row("shared: adapter", f"{budget['adapter_shared']:,}")
    for task, count in budget["per_task"].items():
        table.add_row(f"only {task}", f"{count:,}")
    table.add_row("all", f"{budget['total']:,}", style="bold")
    table.add_row("that learn", f"{budget['trainable']:,}")
    return table
