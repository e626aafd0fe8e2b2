"""polytask check: checks a recipe and its data before training."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

import polytask
from polytask.cli.console import counted, plain_console
from polytask.cli.options import RecipeFile, Settings, TrustPlugins
from polytask.cli.tables import NOT_TRAINED_CAPTION, mark_trained, new_table
from polytask.types import errors_in

TITLES = {
    "problem": ("Problems: scores would mislead, or nothing can be learned", "bold red"),
    "warning": ("Warnings: likely a mistake", "bold yellow"),
    "note": ("Notes: good to know", "bold"),
}
LONGEST_NAME = 10
"""Names of tasks that are longer are wrapped."""
COUNTED = {None: "rows", "bio": "spans", "bioes": "spans", "plain": "words"}
"""What has a label, by the scheme of the tags of words; None for other kinds."""


def run(
    recipe: RecipeFile,
    setting: Settings = [],  # noqa: B006
    strict: Annotated[bool, typer.Option("--strict", help="Exit with code 1 if the data has problems.")] = False,
    trust_plugins: TrustPlugins = False,
) -> None:
    """Check a recipe and its data, and show what would be trained. Nothing is trained or written.

    Also lists problems of the data with row numbers; docs/data.md explains each kind of finding.

    Examples:

        polytask check recipes/quickstart.yaml

        polytask check recipes/quickstart.yaml --strict
    """
    with errors_in(recipe):
        prepared = polytask.rehearse(polytask.read_recipe(recipe, setting), trust_plugins)
    console = plain_console()
    console.print(data_table(prepared))
    for line in shared_rows_lines(prepared):
        console.print(line, highlight=False, soft_wrap=True)
    findings = prepared.findings()
    print_findings(findings, console)
    console.print(budget_table(prepared))
    train = prepared.recipe.train
    steps = train.epochs * prepared.steps_per_epoch
    problems = sum(finding.severity == "problem" for finding in findings)
    verdict = f"the data has {problems} {'problem' if problems == 1 else 'problems'}"
    size = f"{train.batch_size * train.accumulate} examples"
    if prepared.batch_sizes is not None and train.batch_tokens is not None:
        counts = ", ".join(f"{task} {count * train.accumulate}" for task, count in prepared.batch_sizes.items())
        size = f"about {train.batch_tokens * train.accumulate:,} tokens ({counts} examples)"
    console.print(
        f"{counted(train.epochs, 'epoch')} of {counted(prepared.steps_per_epoch, 'step')}: {counted(steps, 'step')} of "
        f"{size}. The recipe is valid{f', but {verdict}' if problems else ''}.",
        highlight=False,
        soft_wrap=True,
    )
    if strict and problems:
        raise polytask.UserError(f"{recipe}: {verdict}, listed above")


def print_findings(findings: Sequence["polytask.Finding"], console: Console) -> None:
    """Prints the findings by severity, the worst first."""
    for severity, (title, style) in TITLES.items():
        group = [finding for finding in findings if finding.severity == severity]
        if group:
            console.print(title, style=style, highlight=False)
            for finding in group:
                console.print(f"  {finding}", highlight=False, soft_wrap=True)
    if any(finding.rows for finding in findings):
        console.print("Row numbers are line numbers; a header is line 1.", style="dim", highlight=False)


def data_table(prepared: "polytask.Prepared") -> Table:
    about = {name: polytask.describe_task(task, prepared) for name, task in prepared.tasks.items()}
    splits = [data for task in about.values() for data in task.data.values()]
    optional = {"skipped": "skipped", "no label": "blank"}  # only if there are such rows, so that 80 characters suffice
    optional = {column: key for column, key in optional.items() if any(data.get(key) for data in splits)}
    columns = ["task", "kind", "split", "rows", *optional, "labels", "tokens", "too long"]
    has_windows = any(prepared.model.input_format(name).has_windows for name in prepared.tasks)
    columns += ["windows"] if has_windows else []
    caption = None if all(spec.trained for spec in prepared.recipe.tasks.values()) else NOT_TRAINED_CAPTION
    table = new_table("Data", columns, left=("task", "kind", "split", "labels"), caption=caption)
    for name, task in about.items():
        for split, data in task.data.items():
            row = [f"{data['rows']:,}", *(f"{data.get(key) or 0:,}" for key in optional.values())]
            row += [balance(data["labels"], COUNTED[prepared.tasks[name].labels.scheme])]
            lengths = data["lengths"]
            table.add_row(
                mark_trained(name, task.trained),
                task.kind,
                split,
                *row,
                f"{lengths['mean']:.1f}",
                f"{lengths['truncated']:,}",
                *([windows(data.get("windows"))] if has_windows else []),
            )
    for column in table.columns[:3]:  # the labels are wrapped instead, which have spaces
        column.min_width = min(max((len(str(cell)) for cell in column.cells), default=0), LONGEST_NAME)
    return table


def windows(counts: Mapping[str, int] | None) -> str:
    """`12 rows, up to 5`: the rows with more than one window, and the most windows of a row."""
    if counts is None:
        return ""
    return f"{counts['rows']:,} rows, up to {counts['most']:,}" if counts["rows"] else "one per row"


def shared_rows_lines(prepared: "polytask.Prepared") -> Iterator[str]:
    """For each group of tasks that share rows: how many rows have a label of each task, and how many have none."""
    for split in ("train", "dev", "test"):
        for group, rows in prepared.shared_rows(split).items():
            labelled = ", ".join(f"{task} {len(own):,}" for task, own in rows.splits.items())
            without = rows.num_unlabelled
            left_out = "" if not without else f"; {without:,} more have no label and are left out"
            yield f"group {group}, {split}: {len(rows):,} rows, labelled for {labelled}{left_out}."


def balance(labels: Mapping[str, Any], counted: str = "rows") -> str:
    """The labels in short: `5 classes, 90 to 210 rows each`, `no 60, yes 60`, `0 to 5`, `3 to 4 options`, or `none` for
    plain text."""
    if not labels:
        return "none"
    if "edges" in labels:
        return f"{labels['edges'][0]:g} to {labels['edges'][-1]:g}"
    names, counts = labels["names"], labels["counts"]
    if "options" in labels:
        return " to ".join(str(count) for count in dict.fromkeys(labels["options"])) + " options"
    if len(names) == 2 and "without_class" not in labels:
        return ", ".join(f"{name} {count:,}" for name, count in zip(names, counts, strict=True))
    spread = f"{min(counts):,}" if min(counts) == max(counts) else f"{min(counts):,} to {max(counts):,}"
    without = f", {labels['without_class']:,} without a class" if labels.get("without_class") else ""
    return f"{len(names)} classes, {spread} {counted} each{without}"


def budget_table(prepared: "polytask.Prepared") -> Table:
    budget = prepared.model.budget()
    table = new_table("Parameters", ("part", "parameters"), left=("part",))
    table.add_row("shared: encoder", f"{budget['encoder']:,}")
    table.add_row("shared: adapter", f"{budget['adapter_shared']:,}")
    for task, count in budget["per_task"].items():
        table.add_row(f"only {task}", f"{count:,}")
    table.add_row("all", f"{budget['total']:,}", style="bold")
    table.add_row("trained", f"{budget['trainable']:,}")
    return table
