"""Measures how much the demo's scores vary: trains recipes/quickstart.yaml with several seeds, prints the range.

    python benchmarks/quickstart_seeds.py --seeds 10 --workers 5 --set train.device=cpu

Each seed is one `polytask train` with one CPU thread; --set applies to all of them.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import mean
from typing import Any

RECIPE = Path(__file__).parent.parent / "recipes" / "quickstart.yaml"


def train(seed: int, folder: Path, settings: list[str]) -> dict[str, Any]:
    """Train one run and return its summary."""
    sets = [word for setting in [f"seed={seed}", "train.threads=1", *settings] for word in ("--set", setting)]
    command = [sys.executable, "-P", "-m", "polytask", "train", str(RECIPE), "--run", str(folder), *sets]
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    summary: dict[str, Any] = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    return summary


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--workers", type=int, default=1, help="number of runs at the same time")
    parser.add_argument("--set", action="append", default=[], dest="settings", metavar="FIELD=VALUE")
    options = parser.parse_args()
    scores: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.workers) as workers:
        seeds = range(options.seeds)
        for seed, summary in zip(
            seeds, workers.map(lambda s: train(s, Path(folder) / str(s), options.settings), seeds), strict=True
        ):
            for task, score in summary["evaluations"]["dev"].items():
                scores.setdefault(f"{task} {score['primary']}", []).append(score["metrics"][score["primary"]]["value"])
            print(
                f"seed {seed}: " + "  ".join(f"{name} {values[-1]:.3f}" for name, values in scores.items()), flush=True
            )
    print("\n| score | lowest | mean | highest |\n|---|---:|---:|---:|")
    for name, values in scores.items():
        print(f"| {name} | {min(values):.3f} | {mean(values):.3f} | {max(values):.3f} |")


if __name__ == "__main__":
    main()
