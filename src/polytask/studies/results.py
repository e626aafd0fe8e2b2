"""Reads finished runs: their predictions on every dev set for the verdict, their costs and their learning curves."""

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from polytask.disk.json_files import read_json, read_json_lines
from polytask.evaluation.comparison.records import MARGIN, TaskData, Verdict
from polytask.evaluation.comparison.verdict import judge
from polytask.kinds.table import KINDS
from polytask.machine import environment, pick_device
from polytask.runs.folder import RunFolder
from polytask.studies.cells import Cell, summary_of
from polytask.studies.sentences import sentence
from polytask.types import UserError

Array = NDArray[Any]
Split = Literal["dev", "test"]
NOTHING_TO_COMPARE = (
    "compare: there is no task that all runs have, other than plain text, which has no predictions to compare; see the "
    "runs' scores"
)


@dataclass(frozen=True)
class FinishedRun:
    """One finished run of a variant."""

    variant: str
    seed: int
    folder: Path
    summary: Mapping[str, Any]


def finished_runs(cells: Sequence[Cell]) -> list[FinishedRun]:
    """Returns the finished runs of a study's cells."""
    return [
        FinishedRun(cell.variant, cell.seed, cell.folder, summary)
        for cell in cells
        if (summary := summary_of(cell.folder)) is not None
    ]


def environment_of(runs: Sequence[FinishedRun]) -> dict[str, Any]:
    """Returns the versions and hardware of the runs, which may be those of other machines than this one.

    If the runs differ, all values are named. Without runs, they are those of this machine.
    """
    here, found = environment(pick_device("auto")), list[dict[str, Any]]()
    for run in runs:
        with suppress(UserError):
            found.append(read_json(RunFolder(run.folder).environment))
    values = {key: [one.get(key) for one in found or [here]] for key in here}
    different = {key: list(dict.fromkeys(map(str, several))) for key, several in values.items()}
    return {key: ", ".join(different[key]) if len(different[key]) > 1 else values[key][0] for key in here}


def verdict_of(
    runs: Sequence[FinishedRun],
    reference: str,
    margin: float = MARGIN,
    split: Split = "dev",
    tasks: Collection[str] | None = None,
) -> Verdict:
    """Compares every variant that has a finished run with the reference; without a run of it there are scores only.

    `margin` is a fraction, as the scores are. `tasks` are those to judge, by default all that have predictions.
    """
    by_variant: dict[str, list[FinishedRun]] = {}
    for run in runs:
        by_variant.setdefault(run.variant, []).append(run)
    check_same_rows(runs, split)
    first = reference if reference in by_variant else next(iter(by_variant))
    ordered = {first: by_variant[first], **by_variant}
    judged = common_tasks(runs, tasks)
    data = [_task_data(task, about, ordered, split) for task, about in judged.items()]
    if not data:
        raise UserError(NOTHING_TO_COMPARE)
    seeds = {variant: [run.seed for run in own] for variant, own in ordered.items()}
    verdict = judge(data, first, seeds, margin=margin)
    return verdict if first == reference else replace(verdict, comparisons=())


def compared(summary: Mapping[str, Any], tasks: Collection[str] | None = None) -> dict[str, Any]:
    """Returns the tasks that have predictions, or some of them: all but plain text, which runs may have or not."""
    found = {task: about for task, about in summary["tasks"].items() if KINDS[about["kind"]].has_predictions}
    return found if tasks is None else {task: about for task, about in found.items() if task in tasks}


def common_tasks(runs: Sequence[FinishedRun], tasks: Collection[str] | None = None) -> dict[str, Any]:
    """Returns the tasks with predictions that all runs have, or some of them; a run may have others as well."""
    common = set.intersection(*(set(compared(run.summary, tasks)) for run in runs))
    return compared(runs[0].summary, common)


def check_same_rows(runs: Sequence[FinishedRun], split: Split = "dev") -> None:
    """Raises a UserError unless the tasks that all runs have are scored by the same metrics and data of the split."""
    first = runs[0]
    tasks = common_tasks(runs)
    for run in runs[1:]:
        one, other = _files(first.folder, split), _files(run.folder, split)
        for task in tasks:
            if one[task]["sha256"] != other[task]["sha256"]:
                raise UserError(
                    f"{run.folder}: task {task} was scored on {other[task]['source']}, but in {first.folder} on "
                    f"{one[task]['source']} with other content; scores on different {split} data cannot be compared"
                )
        for task, about in compared(run.summary, tasks).items():
            if about["metric"] != tasks[task]["metric"]:
                raise UserError(
                    f"{run.folder}: the metric of task {task} is {about['metric']}, but in {first.folder} it is "
                    f"{tasks[task]['metric']}; only scores by the same metric can be compared"
                )


def _files(run: Path, split: Split) -> dict[str, Any]:
    path = RunFolder(run).environment
    try:
        data = read_json(path)["data"]
        return {
            task: {key: splits[split][key] for key in ("sha256", "source")}
            for task, splits in data.items()
            if split in splits or split == "dev"  # plain text is not held back
        }
    except (UserError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path}: cannot read which {split} files the run was scored on: {error}") from None


def _task_data(
    task: str, about: Mapping[str, Any], runs: Mapping[str, Sequence[FinishedRun]], split: Split
) -> TaskData:
    pairs = {variant: [_predicted(run, task, about, split) for run in own] for variant, own in runs.items()}
    try:
        return TaskData.from_runs(task, about["kind"], max(len(about["classes"]), 2), about["metric"], pairs)
    except ValueError as error:
        raise UserError(str(error)) from None


def _predicted(run: FinishedRun, task: str, about: Mapping[str, Any], split: Split) -> tuple[Array, Array]:
    """Reads the true and the predicted labels of a run, as numbers, in the order of the file."""
    path = RunFolder(run.folder).predictions(task, split)
    try:
        lines = list(read_json_lines(path))
    except UserError as error:
        raise UserError(f"{path}: cannot read the run's predictions: {error}") from None
    return KINDS[about["kind"]].recorded(lines, about["classes"])


def comparisons_json(verdict: Verdict | None, examples: str = "dev examples") -> list[dict[str, Any]]:
    """Returns the comparisons with their sentences; `examples` says what was scored."""
    if verdict is None:
        return []
    return [{**asdict(comparison), "sentence": sentence(comparison, examples)} for comparison in verdict.comparisons]


def scores_json(verdict: Verdict | None, variant: str) -> dict[str, Any]:
    """Returns a variant's scores by task, with the mean of the tasks."""
    if verdict is None:
        return {}
    own = [score for score in verdict.scores if score.variant == variant]
    return {s.task: {k: v for k, v in asdict(s).items() if k not in ("variant", "task")} for s in own}


def cost_json(runs: Sequence[FinishedRun]) -> dict[str, Any] | None:
    """Returns a variant's parameters, and the means over its runs of speed, memory, time and forgetting."""
    if not runs:
        return None
    budget = runs[0].summary["parameters"]
    means = {
        key: float(np.mean([run.summary[key] for run in runs]))
        for key in ("examples_per_second", "peak_memory_bytes", "seconds")
    }
    shared = budget["encoder"] + budget["adapter_shared"]
    parts = {"shared": shared, **{key: budget[key] for key in ("per_task", "trainable", "total")}}
    values = [(run.summary.get("transfer") or {}).get("mean_forgetting") for run in runs]
    known = [value for value in values if value is not None]
    forgetting = {"forgetting": float(np.mean(known))} if len(known) == len(runs) else {}
    return {"parameters": parts, **means, **forgetting}


def curves_json(runs: Sequence[FinishedRun]) -> dict[str, Any]:
    """Returns, for each seed and task, the dev score at each evaluation."""
    return {str(run.seed): _curves(run.folder) for run in runs}


def _curves(folder: Path) -> dict[str, list[tuple[int, float]]]:
    curves: dict[str, list[tuple[int, float]]] = {}
    for line in read_json_lines(RunFolder(folder).metrics):
        if line["kind"] == "evaluation":
            for task, score in line["tasks"].items():
                curves.setdefault(task, []).append((line["step"], score["metrics"][score["primary"]]["value"]))
    return curves


def values_json(summary: Mapping[str, Any], tasks: Collection[str] | None = None) -> dict[str, float]:
    """Returns a run's dev scores and, with several tasks, their mean (minus the score where lower is better).

    `tasks` are those to score, by default all that have predictions.
    """
    scores = {task: summary["evaluations"]["dev"][task] for task in compared(summary, tasks)}
    values = {task: score["metrics"][score["primary"]]["value"] for task, score in scores.items()}
    signed = [values[task] if score.get("greater_is_better", True) else -values[task] for task, score in scores.items()]
    return {**values, "mean": float(np.mean(signed))} if len(values) > 1 else values
