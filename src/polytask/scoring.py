"""Scores and predictions of a run's model on whole splits, while it trains and afterwards. Knows runs' folders."""

from collections.abc import Collection, Mapping
from pathlib import Path

import torch

from polytask.evaluation.evaluate import evaluate, split_outputs, write_predictions
from polytask.heads.base import Head
from polytask.places import cache_folder
from polytask.preparing import Prepared
from polytask.recipe import read_recipe
from polytask.serving.predictor import Predictor
from polytask.tasks.task import Split, read_split
from polytask.types import EvalReport, TaskSpec, UserError
from polytask.values import unknown

Outputs = Mapping[str, torch.Tensor]
"""By task, the heads' outputs for every example of a split, in order."""


def score_split(prepared: Prepared, split: str, folder: Path, step: int) -> tuple[EvalReport, Outputs]:
    """Scores a split of every task and writes its predictions into the run."""
    report, outputs = evaluate_split(prepared, split, step)
    for name, data in prepared.splits(split).items():
        _write_predictions(folder, f"{name}-{split}", prepared.model.head(name), outputs[name], data)
    return report, outputs


def _write_predictions(folder: Path, name: str, head: Head, outputs: torch.Tensor, data: Split) -> None:
    """Of plain text there are none."""
    if head.labels.kind != "text":
        write_predictions(folder / "predictions" / f"{name}.jsonl", data.examples(), head.decode(outputs))


def evaluate_split(
    prepared: Prepared, split: str, step: int, tasks: Collection[str] | None = None
) -> tuple[EvalReport, Outputs]:
    splits = {name: data for name, data in prepared.splits(split).items() if tasks is None or name in tasks}
    bf16 = prepared.recipe.train.precision == "bf16"
    outputs = split_outputs(prepared.model, splits, prepared.packer, bf16)
    primary = {name: spec.metric for name, spec in prepared.recipe.tasks.items()}
    return evaluate(prepared.model, outputs, splits, primary, split, step), outputs


def evaluate_run(folder: str | Path, split: str = "dev", on: Mapping[str, str] | None = None) -> EvalReport:
    """A finished run's scores on its own files of a split, or on other files by task. Writes the split's predictions.

    Predictions on other files go to predictions/TASK-on-FILE.jsonl, beside those of the run's own splits.
    """
    folder = Path(folder)
    if not (folder / "recipe.yaml").is_file():
        raise UserError(f"{folder}: this is no run: it has no recipe.yaml")
    recipe = read_recipe(folder / "recipe.yaml")
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
    primary = {name: recipe.tasks[name].metric for name in splits}
    report = evaluate(bundle.model, outputs, splits, primary, split, 0)
    for name, data in splits.items():
        ending = f"on-{Path(files[name]).stem}" if on else split
        _write_predictions(folder, f"{name}-{ending}", bundle.model.head(name), outputs[name], data)
    return report


def _file_of(spec: TaskSpec, split: str, folder: Path) -> str | None:
    if split not in ("train", "dev", "test"):
        raise UserError(f"{folder}: the splits are train, dev and test, found {split!r}")
    file: str | None = getattr(spec, split)
    return file
