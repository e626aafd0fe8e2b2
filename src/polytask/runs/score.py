"""Scores and predictions of a run's model on whole splits, while it trains and afterwards. Knows runs' folders."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from polytask.disk.cache import cache_folder
from polytask.evaluation.baselines import untrained_baseline
from polytask.evaluation.evaluate import evaluate, split_outputs, write_predictions
from polytask.heads.base import Head
from polytask.recipe.reading import read_recipe
from polytask.recipe.records import Recipe
from polytask.runs.prepare import Prepared
from polytask.serving.predictor import Predictor
from polytask.tasks.task import Split, read_split
from polytask.types import EvalReport, TaskSpec, UserError, unknown

Outputs = Mapping[str, torch.Tensor]
"""By task, the heads' outputs for every example of a split, in order."""


def score_split(prepared: Prepared, split: str, folder: Path, step: int) -> tuple[EvalReport, Outputs]:
    """Scores a split of every task and writes its predictions into the run."""
    report, outputs = evaluate_split(prepared, split, step)
    for name, data in prepared.splits(split).items():
        _write_predictions(folder, f"{name}-{split}", prepared.model.head(name), outputs[name], data)
    return report, outputs


def _write_predictions(folder: Path, name: str, head: Head, outputs: torch.Tensor, data: Split) -> Path | None:
    """The file; None for plain text, which has no predictions."""
    if head.labels.kind == "text":
        return None
    path = folder / "predictions" / f"{name}.jsonl"
    write_predictions(path, data.examples(), head.decode(outputs))
    return path


def evaluate_split(
    prepared: Prepared, split: str, step: int, tasks: Collection[str] | None = None
) -> tuple[EvalReport, Outputs]:
    splits = {name: data for name, data in prepared.splits(split).items() if tasks is None or name in tasks}
    bf16 = prepared.recipe.train.precision == "bf16"
    outputs = split_outputs(prepared.model, splits, prepared.packer, bf16)
    return evaluate(prepared.model, outputs, splits, prepared.recipe.tasks, split, step), outputs


def untrained_baselines(prepared: Prepared, tasks: Collection[str]) -> dict[str, dict[str, Any]]:
    """What a method without training scores on dev, by task: see `untrained_baseline`. Plain text has none."""
    bf16 = prepared.recipe.train.precision == "bf16"
    return {
        name: untrained_baseline(prepared.model, task.spec, task.labels, task.splits, prepared.packer, bf16)
        for name, task in prepared.tasks.items()
        if name in tasks and task.spec.kind != "text" and {"train", "dev"} <= set(task.splits)
    }


@dataclass(frozen=True)
class Evaluated(EvalReport):
    """Scores of a finished run, with what was left out and what was written."""

    skipped: Mapping[str, int] = field(default_factory=dict)
    """By task, the broken rows that were left out (`broken_rows: skip`)."""
    predictions: Mapping[str, Path] = field(default_factory=dict)
    """By task, the file with its predictions."""


def evaluate_run(folder: str | Path, split: str = "dev", on: Mapping[str, str] | None = None) -> Evaluated:
    """A finished run's scores on its own files of a split, or on other files by task. Writes the split's predictions.

    Predictions on other files go to predictions/TASK-on-FILE.jsonl, beside those of the run's own splits.
    """
    folder = Path(folder)
    if not (folder / "recipe.yaml").is_file():
        raise UserError(f"{folder}: this is no run: it has no recipe.yaml")
    recipe = read_recipe(folder / "recipe.yaml")
    _check_own_functions(recipe, folder)
    predictor = Predictor.load(folder, recipe.train.device)
    bundle = predictor.bundle
    files = dict(on or {}) or {n: f for n, s in recipe.tasks.items() if (f := _file_of(s, split, folder)) is not None}
    if not files:
        raise UserError(f"{folder}: no task of its recipe has a {split} file")
    splits = {}
    for name, file in files.items():
        if predictor.spec(name).name not in recipe.tasks:
            raise UserError(unknown(f"{folder / 'recipe.yaml'}: tasks", name, recipe.tasks, "task"))
        spec = recipe.tasks[name]
        splits[name] = read_split(spec, bundle.labels[name], file, bundle.tokenizer, cache_folder(), split)
    outputs = split_outputs(bundle.model, splits, bundle.packer, recipe.train.precision == "bf16")
    report = evaluate(bundle.model, outputs, splits, recipe.tasks, split, 0)
    written: dict[str, Path] = {}
    for name, data in splits.items():
        ending = f"on-{Path(files[name]).stem}" if on else split
        path = _write_predictions(folder, f"{name}-{ending}", bundle.model.head(name), outputs[name], data)
        written |= {} if path is None else {name: path}
    skipped = {name: data.num_broken for name, data in splits.items()}
    return Evaluated(report.step, split, report.tasks, skipped=skipped, predictions=written)


def _check_own_functions(recipe: Recipe, folder: Path) -> None:
    """A run's folder may come from somebody else: no code in it is run."""
    for name, spec in recipe.tasks.items():
        for reference in spec.metrics:
            if Path(reference.rpartition(":")[0]).resolve().is_relative_to(folder.resolve()):
                raise UserError(f"{folder}: tasks.{name}.metrics: {reference} is inside the run; its code is not run")


def _file_of(spec: TaskSpec, split: str, folder: Path) -> str | None:
    if split not in ("train", "dev", "test"):
        raise UserError(f"{folder}: the splits are train, dev and test, found {split!r}")
    file: str | None = getattr(spec, split)
    return file
