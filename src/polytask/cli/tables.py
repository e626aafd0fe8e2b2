"""The tables commands print."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

import polytask
from polytask.cli.console import plain_console

LOWER = "\u2193"
NOT_TRAINED = "*"
NOT_TRAINED_CAPTION = f"{NOT_TRAINED}: not trained, only scored"
MOST_METRICS = 3
"""Metrics per task in a table, without the user's own functions. The report shows all metrics."""


def new_table(title: str, columns: Sequence[str], left: Sequence[str], caption: str | None = None) -> Table:
    """An empty table that fits 80 characters; columns that are not in `left` hold numbers."""
    table = Table(
        title=title,
        title_justify="left",
        caption=caption,
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        collapse_padding=True,
        pad_edge=False,
    )
    for column in columns:
        table.add_column(column, justify="left" if column in left else "right", overflow="fold")
    return table


def scores_table(report: "polytask.EvalReport", summary: "polytask.Summary | None" = None) -> Table:
    """Each task's main metrics with their intervals and, from the run's summary, the scores of baselines."""
    lowered = any(score.sign(name) < 0 for _, score in report for name in _main_metrics(score))
    known = {key: getattr(summary, key, None) or {} for key in ("baselines", "start", "untrained")}
    heads = {"start": "step 0", "untrained": "untrained", "baselines": "guess"}
    shown = [key for key in heads if known[key]]
    table = new_table(
        f"{report.split} scores, with 95 % intervals over examples",
        ("task", "rows", "metric", "score", "interval", *(heads[key] for key in shown)),
        left=("task", "metric"),
        caption="; ".join(_captions(lowered, bool(report.not_trained))) or None,
    )
    for task, score in report:
        shown_task = mark_trained(task, task not in report.not_trained)
        for name in _main_metrics(score):
            value, is_primary = score.metrics[name], name == score.primary
            table.add_row(
                shown_task if is_primary else "",
                f"{score.examples:,}" if is_primary else "",
                name if score.sign(name) > 0 else f"{name} {LOWER}",
                f"{value.value:.3f}",
                f"{value.low:.3f} to {value.high:.3f}",
                *(_reference(known[key].get(task), name) for key in shown),
                style="bold" if is_primary else "dim",
            )
    return table


def mark_trained(task: str, trained: bool) -> str:
    """The name of a task in a table, with a mark if it is not trained."""
    return task if trained else f"{task} {NOT_TRAINED}"


def _captions(lowered: bool, marked: bool) -> list[str]:
    return [f"{LOWER}: lower is better"] * lowered + [NOT_TRAINED_CAPTION] * marked


def _main_metrics(score: "polytask.TaskScore") -> list[str]:
    """The primary metric, the first others, and the user's own functions."""
    others = [name for name in score.metrics if name != score.primary]
    first = others[: MOST_METRICS - 1]
    own = [name for name in others if name not in first and name not in polytask.KNOWN_METRICS]
    return [score.primary, *first, *own]


def _reference(score: Mapping[str, Any] | None, metric: str) -> str:
    """The value of a metric for a baseline or an earlier evaluation; empty if there is none."""
    if not score:
        return ""
    if "metrics" in score:
        return f"{score['metrics'][metric]['value']:.3f}" if metric in score["metrics"] else ""
    return f"{score['value']:.3f}" if score["metric"] == metric else ""


def training_rows_line(finished: "polytask.Finished") -> str:
    """Each task's score on training rows (`train.evaluate_train`), and its difference from the score on dev."""
    parts = []
    for task, score in finished.summary.training_rows.items():
        value, name = score["metrics"][score["primary"]]["value"], score["primary"]
        gap = value - finished.evaluations["dev"].tasks[task].metrics[name].value
        parts.append(f"{task} {name} {value:.3f} on {score['examples']:,} rows ({gap:+.3f})")
    return f"training rows (minus dev): {', '.join(parts)}"


def calibration_line(task: str, measured: Mapping[str, Any]) -> str:
    """Calibration error and log loss of a task's probabilities before and after calibration."""
    before, after = measured["before"], measured["after"]
    return (
        f"{task}: calibration error {before['calibration_error']:.3f} before calibration, "
        f"{after['calibration_error']:.3f} after; log loss {before['log_loss']:.3f} and {after['log_loss']:.3f}"
    )


def old_tasks_table(old_tasks: Mapping[str, Mapping[str, Any]]) -> Table:
    """The old tasks' scores before and after tasks or a class were added."""
    table = new_table(
        "old tasks on dev, before and after",
        ("task", "metric", "before", "after", "difference", "95 % interval", "predictions"),
        left=("task", "metric", "predictions"),
    )
    for task, old in old_tasks.items():
        before, after, difference = (old[key] for key in ("before", "after", "difference"))
        table.add_row(
            task,
            old["metric"] if old["greater_is_better"] else f"{old['metric']} (lower is better)",
            f"{before['value']:.3f}",
            f"{after['value']:.3f}",
            f"{difference['value']:+.3f}",
            f"{difference['low']:+.3f} to {difference['high']:+.3f}",
            "bit-identical" if old["identical"] else "changed",
        )
    return table


def classes_table(task: str, classes: Mapping[str, Mapping[str, Any]]) -> Table:
    """Precision and recall of every class of a task that got a new class, before and after."""
    table = new_table(
        f"classes of {task} on dev, before and after",
        ("class", "rows", "precision", "after", "recall", "after"),
        left=("class",),
    )
    for name, sides in classes.items():
        before, after = sides["before"] or {}, sides["after"]
        cells = [f"{side[key]:.3f}" if side else "" for key in ("precision", "recall") for side in (before, after)]
        shown = name if before else f"{name} (new)"
        table.add_row(shown, f"{after['support']:,.0f}", *cells, style=None if before else "bold")
    return table


def interference_table(interference: Mapping[str, Any]) -> Table:
    """The mean cosine of every pair of tasks, the strongest conflict first."""
    title = f"agreement of the tasks' gradients, over {interference['probes']} probes, with 95 % intervals"
    columns = ("tasks", "mean cosine", "interval", "below 0", "verdict")
    table = new_table(title, columns, left=("tasks", "verdict"))
    words = {"apart": "conflict", "together": "agree", "unclear": "unclear"}
    for pair in sorted(interference["pairs"], key=lambda pair: pair["cosine"]["value"] or 0.0):
        cosine = pair["cosine"]
        if cosine["value"] is not None:
            table.add_row(
                " and ".join(pair["tasks"]),
                f"{cosine['value']:.3f}",
                f"{cosine['low']:.3f} to {cosine['high']:.3f}" if cosine["low"] is not None else "",
                f"{100 * pair['conflict']:.0f} %",
                words[pair["verdict"]],
                style="dim" if pair["verdict"] == "unclear" else "bold",
            )
    return table


def print_finished(finished: "polytask.Finished", console: Console | None = None) -> None:
    console = console or plain_console()
    for split, report in finished.evaluations.items():
        console.print(scores_table(report, finished.summary if split == "dev" else None))
    if finished.summary.training_rows:
        console.print(training_rows_line(finished), soft_wrap=True, highlight=False, markup=False)
    for task, measured in finished.summary.calibration.items():
        if measured["after"] is not None:
            console.print(calibration_line(task, measured), soft_wrap=True, highlight=False, markup=False)
    for remark in finished.summary.remarks:
        console.print(remark, soft_wrap=True, highlight=False, markup=False)
    if (added := finished.summary.added) is not None:
        console.print(old_tasks_table(added.old))
        if added.classes:
            console.print(classes_table(added.tasks[0], added.classes))
    if finished.refused is None:
        console.print(f"model:  {finished.folder / 'model'}", soft_wrap=True, highlight=False)
    console.print(f"report: {finished.report}", soft_wrap=True, highlight=False)
    if finished.removed_bytes:
        console.print(
            f"removed: the checkpoints ({finished.removed_bytes / 1e6:,.0f} MB); with --keep-checkpoints the run keeps "
            "them, and can be trained further",
            soft_wrap=True,
            highlight=False,
        )


def replay_table(replays: Mapping[str, "polytask.Replay"]) -> Table:
    """How an exported model differs from its run on the dev rows."""
    table = new_table(
        "The exported model and the run on dev: the largest difference of an output, rows with other labels, and the "
        "change of the score with its 95 % interval over examples",
        ("task", "rows", "largest\ndiff.", "other\nlabels", "metric", "score", "change", "interval"),
        left=("task", "metric"),
    )
    for task, one in replays.items():
        table.add_row(
            task,
            f"{one.rows:,}",
            f"{one.largest:.1e}",
            "" if one.flipped is None else f"{one.flipped:,}",
            one.metric,
            f"{one.score:.3f}",
            f"{one.change:+.4f}",
            f"{one.change_low:+.4f}, {one.change_high:+.4f}",
        )
    return table
