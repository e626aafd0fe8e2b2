"""Compares an exported model with the run's on the dev rows: outputs, labels and scores. Knows no format."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch import Tensor

from polytask.evaluation.evaluate import predictions_of, score_outputs, split_outputs
from polytask.evaluation.metrics import chosen_metric
from polytask.evaluation.own_metrics import own_metrics
from polytask.evaluation.scoring import Predictions
from polytask.heads.base import Head
from polytask.model import MultiTaskModel
from polytask.recipe.reading import read_recipe
from polytask.runs.bundle import Bundle, load_run, read_split_for
from polytask.runs.folder import RunFolder
from polytask.runs.prepare import use_code
from polytask.settings import TaskSpec
from polytask.tasks.task import Split
from polytask.types import UserError

RESAMPLES = 400
TAIL = 2.5
"""Percent of the resamples outside each end of an interval."""


@dataclass(frozen=True)
class DevRows:
    """A run's model and its dev rows."""

    bundle: Bundle
    specs: Mapping[str, TaskSpec]
    splits: Mapping[str, Split]


@dataclass(frozen=True)
class Replay:
    """How the outputs of an exported model differ from those of the run, for one task."""

    rows: int
    largest: float
    """The largest absolute difference of an output."""
    flipped: int | None
    """The rows with another label; None for scores, which have no labels."""
    metric: str
    score: float
    """Of the run's model, with its 95 % interval over examples."""
    low: float
    high: float
    change: float
    """The score of the exported model minus that of the run, with its 95 % interval over examples."""
    change_low: float
    change_high: float

    @property
    def is_inside(self) -> bool:
        """Whether the exported model's score is in the interval of the run's."""
        return self.low <= self.score + self.change <= self.high


def read_dev_rows(run: Path, trust_plugins: bool = False) -> DevRows:
    """Loads a run's model and the dev files of its tasks that have predictions."""
    folder = RunFolder(run)
    if not run.is_dir():
        raise UserError(f"{run}: there is no such run")
    if not folder.recipe.is_file():
        raise UserError(
            f"{run}: not a run: it has no {folder.recipe.name}, which names the dev files that check an export"
        )
    recipe = read_recipe(folder.recipe)
    use_code(recipe, trust_plugins)
    bundle = load_run(run, trust_plugins)
    splits = {
        name: read_split_for(bundle, recipe.tasks[name], recipe.tasks[name].dev, "dev")
        for name in bundle.specs
        if name in recipe.tasks and recipe.tasks[name].dev and bundle.model.head(name).kind.has_predictions
    }
    return DevRows(bundle, recipe.tasks, splits)


def replay(rows: DevRows, exported: MultiTaskModel, only: str | None = None) -> dict[str, Replay]:
    """Compares the exported model with the run's on the dev rows of its tasks."""
    packer = rows.bundle.packer
    splits = {task: split for task, split in rows.splits.items() if task in exported.tasks and only in (None, task)}
    expected = split_outputs(rows.bundle.model, splits, packer)
    found = split_outputs(exported, splits, packer)
    return {
        task: compare_outputs(rows.bundle.model.head(task), expected[task], found[task], split, rows.specs[task])
        for task, split in splits.items()
    }


def compare_outputs(head: Head, expected: Tensor, found: Tensor, split: Split, spec: TaskSpec) -> Replay:
    """Compares the outputs of two models for the rows of a split."""
    labels = split.labels
    before = score_outputs(head, expected, labels, spec)
    metric = chosen_metric(spec.metric, head.labels.kind, "metric", own_metrics(spec), head.labels.scheme)
    old, new = (predictions_of(outputs, head, labels) for outputs in (expected, found))
    value = before.metrics[before.primary]
    columns = [*old.columns(metric), *new.columns(metric)]

    def change(rows_N: np.ndarray) -> float:
        gold, one, gold2, other = (np.asarray(column)[rows_N] for column in columns)
        return float(metric.function(gold2, other)) - float(metric.function(gold, one))

    everything = np.arange(len(labels))
    rng = np.random.default_rng(0)
    changes = [0.0]
    if any(not np.array_equal(a, b) for a, b in zip(columns[:2], columns[2:], strict=True)):
        with np.errstate(all="ignore"):
            changes = [change(rng.integers(0, len(labels), len(labels))) for _ in range(RESAMPLES)]
    low, high = np.nanpercentile(changes, [TAIL, 100 - TAIL]).tolist()
    return Replay(
        rows=len(labels),
        largest=float((expected - found).abs().max()) if found.isfinite().all() else float("inf"),
        flipped=_flipped(head, expected, found, old, new),
        metric=before.primary,
        score=value.value,
        low=value.low,
        high=value.high,
        change=change(everything),
        change_low=low,
        change_high=high,
    )


def _flipped(head: Head, expected: Tensor, found: Tensor, old: Predictions, new: Predictions) -> int | None:
    """The rows with another predicted label; for texts that belong together, those with another rank."""
    if head.labels.kind == "score":
        return None
    if head.kind.compared_field == "rank":
        one, other = old.predicted, new.predicted
    else:
        one, other = (head.kind.predicted(outputs, head.labels) for outputs in (expected, found))
    return int((one != other).reshape(len(one), -1).any(1).sum())
