"""Compares one model for three tasks with three models, each for one of them: time, processor time and size.

    python benchmarks/one_or_three.py [--rounds N] [--recipe FILE] [--set FIELD=VALUE ...] [--steps N]

Every run is `polytask train` in a process of its own, from the command to the report; the ways take turns. Each task
gets as many steps of as many examples in its own model as in the shared one: the recipe must train its tasks in turns
(`sampler: round_robin`). Prints a row for each round, then medians.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import torch
import yaml

from polytask.machine import environment
from polytask.recipe.reading import portable_content

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class Cost:
    """What training took."""

    seconds: float
    processor_seconds: float
    megabytes: float
    """The size of the models."""

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(
            self.seconds + other.seconds,
            self.processor_seconds + other.processor_seconds,
            self.megabytes + other.megabytes,
        )


def train(recipe: Path, run: Path) -> Cost:
    started, before = time.perf_counter(), os.times()
    command = [sys.executable, "-P", "-m", "polytask", "train", str(recipe), "--run", str(run)]
    subprocess.run(command, check=True, capture_output=True)
    seconds, after = time.perf_counter() - started, os.times()
    processor = after.children_user + after.children_system - before.children_user - before.children_system
    size = sum(path.stat().st_size for path in (run / "model").rglob("*") if path.is_file())
    return Cost(seconds, processor, size / 1e6)


def write_recipes(recipe: Path, settings: Sequence[str], steps: int, folder: Path) -> list[Path]:
    """The recipe with all tasks, and one for each task; each task has so many steps an epoch in both."""
    content = portable_content(recipe, settings)
    tasks = content["tasks"]
    found = []
    for name, own in {"together": tasks, **{task: {task: tasks[task]} for task in tasks}}.items():
        train_settings = {**content["train"], "steps_per_epoch": steps * len(own)}
        found.append(folder / f"{name}.yaml")
        changed = {**content, "name": name, "tasks": own, "train": train_settings}
        found[-1].write_text(yaml.safe_dump(changed, sort_keys=False), encoding="utf-8")
    return found


def shown(costs: Sequence[float], places: int) -> str:
    return f"{statistics.median(costs):.{places}f} ({min(costs):.{places}f} to {max(costs):.{places}f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", type=Path, default=ROOT / "recipes" / "quickstart.yaml")
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--steps", type=int, default=28, help="the steps of a task in an epoch")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    costs: dict[str, list[Cost]] = {"one model": [], "three models": []}
    with tempfile.TemporaryDirectory() as scratch:
        together, *alone = write_recipes(options.recipe, options.set, options.steps, Path(scratch))
        for turn in range(options.rounds):
            runs = Path(scratch) / str(turn)
            costs["one model"].append(train(together, runs / together.stem))
            separate = [train(recipe, runs / recipe.stem) for recipe in alone]
            costs["three models"].append(sum(separate[1:], separate[0]))
            for name, own in costs.items():
                print(f"round {turn}, {name}: {own[-1]}", flush=True)
    machine = environment(torch.device("cpu"))
    print(f"\n{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, {machine['cores']} cores, {machine['cpu']}, ", end="")
    print(f"torch {machine['torch']}, commit {machine['commit'][:8]}\n")
    print("| | seconds | processor seconds | megabytes |\n|---|---|---|---:|")
    for name, own in costs.items():
        seconds, processor = shown([one.seconds for one in own], 1), shown([one.processor_seconds for one in own], 1)
        print(f"| {name} | {seconds} | {processor} | {own[0].megabytes:.0f} |")
    one, three = costs.values()
    for what in ("seconds", "processor_seconds", "megabytes"):
        ratios = [getattr(b, what) / getattr(a, what) for a, b in zip(one, three, strict=True)]
        print(f"three models / one model, {what.replace('_', ' ')}: {shown(ratios, 2)}")


if __name__ == "__main__":
    main()
