"""Measures how much scores on the built-in data vary: trains shipped recipes with several seeds, prints the range.

    python benchmarks/quickstart_seeds.py --seeds 10 --workers 5 --set train.device=cpu
    python benchmarks/quickstart_seeds.py tickets entities match choice partly-labelled long-documents --seeds 5

Each seed is one `polytask train` with one CPU thread; --set applies to all of them.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import mean
from typing import Any

RECIPES = Path(__file__).parent.parent / "recipes"


def train(recipe: str, seed: int, folder: Path, settings: list[str]) -> dict[str, Any]:
    """Train one run and return its summary."""
    sets = [word for setting in [f"seed={seed}", "train.threads=1", *settings] for word in ("--set", setting)]
    command = [sys.executable, "-P", "-m", "polytask", "train", str(RECIPES / f"{recipe}.yaml"), "--run", str(folder)]
    subprocess.run([*command, *sets], check=True, capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    summary: dict[str, Any] = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    return summary


def dev_scores(summary: Mapping[str, Any]) -> dict[str, float]:
    """All scores of the best checkpoint on dev, the primary ones first, and the error of its probabilities."""
    scores = {}
    for task, score in summary["evaluations"]["dev"].items():
        for name in sorted(score["metrics"], key=lambda name: name != score["primary"]):
            scores[f"{task} {name}"] = score["metrics"][name]["value"]
    for task, fitted in (summary["calibration"] or {}).items():
        for when in ("before", "after"):
            scores[f"{task} calibration_error {when}"] = fitted[when]["calibration_error"]
    return scores


def primary_scores(summary: Mapping[str, Any]) -> str:
    dev = summary["evaluations"]["dev"]
    names = {task: score["primary"] for task, score in dev.items()}
    return "  ".join(f"{task} {name} {dev[task]['metrics'][name]['value']:.3f}" for task, name in names.items())


def references(summary: Mapping[str, Any], task: str) -> list[str]:
    """The scores of a constant answer and of the untrained encoder, which do not depend on the seed."""
    known = (summary["baselines"].get(task), (summary["untrained"] or {}).get(task))
    return [f"{one['value']:.3f} ({one['what']})" if one else "" for one in known]


def table(summaries: Sequence[Mapping[str, Any]]) -> list[str]:
    """One line for each score of a recipe."""
    by_seed = [dev_scores(summary) for summary in summaries]
    rows = []
    for name in by_seed[0]:
        task, metric = name.split(" ", 1)
        dev = summaries[0]["evaluations"]["dev"][task]
        values = [scores[name] for scores in by_seed]
        shown = references(summaries[0], task) if metric == dev["primary"] else ["", ""]
        numbers = [f"{number:.3f}" for number in (min(values), mean(values), max(values))]
        rows.append(" | ".join([f"| {name}", str(dev["examples"]), *numbers, *shown]) + " |")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", nargs="*", default=["quickstart"], help="names of files in recipes/")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--workers", type=int, default=1, help="number of runs at the same time")
    parser.add_argument("--set", action="append", default=[], dest="settings", metavar="FIELD=VALUE")
    options = parser.parse_args()
    for recipe in options.recipes:
        print(f"\n{recipe}", flush=True)
        summaries = []
        with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.workers) as workers:
            runs = [(recipe, seed, Path(folder) / str(seed), options.settings) for seed in range(options.seeds)]
            for seed, summary in enumerate(workers.map(train, *zip(*runs, strict=True))):
                summaries.append(summary)
                print(f"seed {seed}: {primary_scores(summary)}", flush=True)
        print("\n| dev score | rows | lowest | mean | highest | constant answer | untrained |")
        print("|---|---:|---:|---:|---:|---|---|")
        print("\n".join(table(summaries)), flush=True)


if __name__ == "__main__":
    main()
