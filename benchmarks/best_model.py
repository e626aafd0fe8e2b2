"""Trains variants of recipes/best.yaml side by side, and scores ensembles and averages of the finished runs.

    python benchmarks/phrases.py DATA
    POLYTASK_DATA=DATA python benchmarks/best_model.py OUT [--only VARIANT ...] [--seeds N ...] [--set FIELD=VALUE ...]
        [--recipe FILE] [--runs DIR]

All runs start at once: on a GPU, with NVIDIA's multi-process service, up to 16 share it. For each variant with two or
more runs, two more models are scored on dev: an ensemble, whose prediction is the mean of the runs' predictions, and a
model whose weights are the mean of the runs' weights (Wortsman et al., "Model soups", 2022). Every result is appended
to OUT/best.jsonl as soon as it exists. --set is for all variants.
"""

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from polytask import evaluate_run
from polytask.runs.bundle import load_run, save_bundle
from polytask.runs.folder import RunFolder
from polytask.studies.cells import summary_of
from polytask.training.averages import mean_weights

RECIPE = Path(__file__).parent.parent / "recipes" / "best.yaml"
LONG = ("train.epochs=8",)
VARIANTS: Mapping[str, Sequence[str]] = {
    "best": (),
    "without R-Drop": ("regularizers=[]", "train.epochs=4"),
    "without R-Drop, 8 epochs": ("regularizers=[]", *LONG),
    "R-Drop .5, 4 epochs": ("regularizers=[{name: r_drop, weight: 0.5}]", "train.epochs=4"),
    "R-Drop .5": ("regularizers=[{name: r_drop, weight: 0.5}]",),
    "R-Drop 2, 4 epochs": ("regularizers=[{name: r_drop, weight: 2.0}]", "train.epochs=4"),
    "dropout .2": ("regularizers=[]", "dropout=0.2", "attention_dropout=0.2", *LONG),
    "learning rate 1e-4": ("regularizers=[]", "optimizer.lr=1e-4", "train.epochs=4"),
}
Scores = dict[str, float]


def train(
    runs: Path, recipe: Path, variants: Sequence[str], seeds: Sequence[int], changes: Sequence[str]
) -> list[Path]:
    """Train every variant with every seed, all at once; returns the folders of the runs that finished."""
    started = {}
    for variant in variants:
        for seed in seeds:
            folder = runs / f"{variant} {seed}".replace(" ", "-").replace(",", "")
            settings = [f"seed={seed}", *VARIANTS[variant], *changes]
            options = [word for setting in settings for word in ("--set", setting)]
            command = [sys.executable, "-P", "-m", "polytask", "train", str(recipe), "--run", str(folder), *options]
            with folder.with_suffix(".log").open("w") as log:
                started[folder] = subprocess.Popen(command, stdout=log, stderr=log)
    for process in started.values():
        process.wait()
    return [folder for folder in started if summary_of(folder) is not None]


def scores_of(run: Path) -> Scores:
    summary = summary_of(run)
    assert summary is not None
    return {task: one["metrics"][one["primary"]]["value"] for task, one in summary["evaluations"]["dev"].items()}


def ensemble(runs: Sequence[Path]) -> Scores:
    """Accuracy or Pearson's r of the mean prediction of several runs on dev."""
    found = {}
    for task in scores_of(runs[0]):
        rows = [read_rows(RunFolder(run).predictions(task, "dev")) for run in runs]
        gold = [row["label"] for row in rows[0]]
        if "probabilities" in rows[0][0]:
            classes = list(rows[0][0]["probabilities"])
            mean_NC = np.mean([[[row["probabilities"][c] for c in classes] for row in own] for own in rows], axis=0)
            found[task] = float(
                np.mean([classes[n] == str(label) for n, label in zip(mean_NC.argmax(1), gold, strict=True)])
            )
        else:
            mean_N = np.mean([[row["prediction"] for row in own] for own in rows], axis=0)
            found[task] = float(np.corrcoef(mean_N, gold)[0, 1])
    return found


def read_rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def averaged(runs: Sequence[Path], target: Path) -> Scores:
    """Dev scores of one model with the mean of the runs' weights, which is written as the run `target`."""
    shutil.copytree(runs[0], target, ignore=shutil.ignore_patterns("model"), dirs_exist_ok=True)
    bundles = [load_run(run) for run in runs]
    bundles[0].model.load_state_dict(mean_weights([bundle.model.state_dict() for bundle in bundles]))
    RunFolder(target).model.path.mkdir(exist_ok=True)
    save_bundle(bundles[0], RunFolder(target).model.path)
    return {task: score.metrics[score.primary].value for task, score in evaluate_run(target)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", nargs="*", default=list(VARIANTS), choices=list(VARIANTS))
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2, 3])
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--recipe", type=Path, default=RECIPE)
    parser.add_argument("--runs", type=Path, default=Path("runs/best-model"))
    options = parser.parse_args()
    for folder in (options.out, options.runs):
        folder.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    with (options.out / "best.jsonl").open("a", encoding="utf-8") as out:

        def report(what: str, scores: Scores) -> None:
            line = {"what": what, "seconds": round(time.monotonic() - began), "dev": scores}
            print(json.dumps(line), file=out, flush=True)
            print(what, ", ".join(f"{task} {score:.4f}" for task, score in scores.items()), flush=True)

        finished = train(options.runs, options.recipe, options.only, options.seeds, options.set)
        for run in finished:
            report(run.name, scores_of(run))
        for variant in options.only:
            name = variant.replace(" ", "-").replace(",", "")
            own = [run for run in finished if run.name.rsplit("-", 1)[0] == name]
            if len(own) > 1:
                report(f"{name}, ensemble of {len(own)}", ensemble(own))
                report(f"{name}, mean weights of {len(own)}", averaged(own, options.runs / f"{name}-mean"))


if __name__ == "__main__":
    main()
