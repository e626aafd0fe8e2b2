"""Measures what probes of interference cost at the interval that `polytask interference` chooses by default.

    python benchmarks/interference.py [ROUNDS] [FIELD=VALUE ...]

Trains the quickstart recipe (three tasks on built-in data, the real MiniLM) on this machine's device, in the training
loop with its journal, but without evaluations and checkpoints. A round is the steps from one probe to the next, with
the probe. Each round is compared with itself without its probe: with / without = time of the round / (time of the round
- time of the probe). Prints the median over the rounds and their spread. Recipe fields can be set, for example
`sampler=proportional`.
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from polytask import Running, read_recipe, start_training, with_probes
from polytask.machine import environment

RECIPE = "recipes/quickstart.yaml"
STEPS_ONLY = ["train.epochs=1000", "train.evaluate_every=1000000", "train.save_every=1000000"]
TARGET = 1.1


def measure(running: Running, every: int, rounds: int) -> list[tuple[float, float]]:
    """Return, for each round, its seconds and the seconds of its probe."""
    times = []
    started = time.perf_counter()
    for report in running.steps():
        if report.interference is not None:
            now = time.perf_counter()
            times.append((now - started, report.interference.seconds))
            started = now
            if report.step == every * (rounds + 1):
                break
    return times[1:]  # the first is a warm-up


def main(rounds: int, settings: Sequence[str]) -> None:
    recipe = with_probes(read_recipe(RECIPE, [*STEPS_ONLY, *settings]))
    every = recipe.train.interference_every
    assert every is not None
    with tempfile.TemporaryDirectory() as folder:
        running = start_training(recipe, Path(folder) / "run")
        machine = environment(running.device)
        print(f"{machine['cpu']}, {machine['device']}, {machine['threads']} threads, torch {machine['torch']}")
        times = measure(running, every, rounds)
    step = statistics.median((whole - probe) / every for whole, probe in times)
    probe = statistics.median(probe for _, probe in times)
    ratios = sorted(whole / (whole - probe) for whole, probe in times)
    print(f"{len(recipe.tasks)} tasks, a probe every {every} steps, {rounds} rounds")
    print(f"a step: {step * 1000:.1f} ms   a probe: {probe * 1000:.1f} ms, {probe / step:.2f} steps")
    print(
        f"training with probes / without: {statistics.median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f})   "
        f"target: at most {TARGET}"
    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5, sys.argv[2:])
