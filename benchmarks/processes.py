"""Measures training steps in one and in two processes on this machine, and the parts that a step consists of.

    python benchmarks/processes.py [--rounds N] [--steps N] [--batches 16,32,64] [--precision bf16] [--out FILE.json]

MiniLM with real weights and the three tasks of recipes/quickstart.yaml, one task per step, in turns. Two processes are
started once, connected by gloo on the loopback interface; every round uses the same examples for each variant, and the
variants take turns within a round, in a random order:

- `1 x 1`: one process with one thread, while the other one waits
- `1 x 2`: one process with two threads
- `2 x 1`: two processes with one thread each, which divide the step as `polytask train --processes 2` does
- `at the end`: the same, but gradients are sent after the backward pass instead of during it
- `seen rows`: as 2 x 1, but of the word embeddings only the rows of words in the step's texts are sent; an experiment
- `apart`: the same parts in both processes at the same time, without any exchange: what sharing the memory costs
- `one part`: one of these parts, while the other process waits

It also measures an all-reduce of several sizes, the update, and the copy of all gradients into one tensor. Prints the
median over rounds and the lowest and highest; --out has every measurement, from which scale.py predicts.
"""

import argparse
import json
import os
import random
import socket
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

from polytask.machine import environment

SIZES = (8, 2**10, 2**14, 2**17, 2**20, 2**22, 2**23, 2**24, 2**25, 2**26)
VARIANTS = ("1 x 1", "1 x 2", "2 x 1", "at the end", "seen rows", "apart", "one part")
TOGETHER = ("2 x 1", "at the end", "seen rows")
Measured = dict[str, Any]


class Pair:
    """Two processes that obey at the same time, or one of them while the other waits."""

    def __init__(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        shared = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}
        program = [sys.executable, str(Path(__file__).parent / "processes_worker.py")]
        pipe = subprocess.PIPE
        self.workers = [
            subprocess.Popen(program, env={**shared, "RANK": str(rank)}, stdin=pipe, stdout=pipe, text=True)
            for rank in range(2)
        ]
        self.facts, _ = (self._answer(worker) for worker in self.workers)

    def both(self, job: str, **options: Any) -> list[Measured]:
        return self._ask(self.workers, job, options)

    def one(self, job: str, **options: Any) -> Measured:
        return self._ask(self.workers[:1], job, options)[0]

    def _ask(self, workers: Sequence["subprocess.Popen[str]"], job: str, options: Measured) -> list[Measured]:
        for worker in workers:
            assert worker.stdin is not None
            worker.stdin.write(json.dumps({"job": job, **options}) + "\n")
            worker.stdin.flush()
        return [self._answer(worker) for worker in workers]

    def _answer(self, worker: "subprocess.Popen[str]") -> Measured:
        assert worker.stdout is not None
        line = worker.stdout.readline()
        if not line:
            raise SystemExit("a process has ended; its error is above")
        answer: Measured = json.loads(line)
        return answer

    def close(self) -> None:
        for worker in self.workers:
            assert worker.stdin is not None
            worker.stdin.close()
        for worker in self.workers:
            worker.wait()


@contextmanager
def started() -> Iterator[Pair]:
    pair = Pair()
    try:
        yield pair
    finally:
        pair.close()


def measure_steps(pair: Pair, batch: int, rounds: int, steps: int, precision: str) -> list[Measured]:
    """By round: the steps of each variant, each with its seconds and tokens, by process."""
    order, found = random.Random(batch), []
    for number in range(rounds + 1):
        options = {"batch": batch, "first": number * steps * batch, "count": steps, "precision": precision}
        taken: Measured = {}
        for variant in order.sample(VARIANTS, len(VARIANTS)):
            threads = 2 if variant == "1 x 2" else 1
            how = {"1 x 1": "alone", "1 x 2": "alone", "one part": "apart"}.get(variant, variant)
            if variant in (*TOGETHER, "apart"):
                taken[variant] = pair.both("steps", how=how, threads=threads, **options)
            else:
                taken[variant] = [pair.one("steps", how=how, threads=threads, **options)]
        if number:  # the first round is a warm-up
            found.append(taken)
            print(f"batch {batch}, round {number}: {describe(taken)}", flush=True)
    return found


def step_seconds(taken: Measured, variant: str) -> float:
    """Mean seconds of a step; of processes without exchange, those of the slower one."""
    return max(statistics.fmean(seconds for seconds, _ in one["steps"]) for one in taken[variant])


def describe(taken: Measured) -> str:
    return ", ".join(f"{variant} {step_seconds(taken, variant) * 1000:.1f} ms" for variant in VARIANTS)


def measure_parts(pair: Pair, parameters: int, rounds: int) -> list[Measured]:
    """By round: all-reduces; the update and the copy, in both processes at once and in one."""
    found = []
    for _ in range(rounds):
        one, both = pair.one("update", times=3), pair.both("update", times=3)
        sizes = (*SIZES, 4 * parameters)
        reduced = pair.both("reduce", sizes=sizes, times=5)[0]
        found.append({"one": one, "both": both[0], "reduce": reduced})
    return found


# --- tables -----------------------------------------------------------------------------------------------------------
def middle(values: Sequence[float], digits: int = 1, scale: float = 1000) -> str:
    scaled = [value * scale for value in values]
    return f"{statistics.median(scaled):.{digits}f} ({min(scaled):.{digits}f} to {max(scaled):.{digits}f})"


def print_steps(steps: dict[str, list[Measured]]) -> None:
    print("\n| examples a step | tokens a step | " + " | ".join(f"{v}, ms" for v in VARIANTS) + " |")
    print("|---:|---:|" + "---|" * len(VARIANTS))
    for batch, rounds in steps.items():
        tokens = statistics.fmean(t for taken in rounds for _, t in taken["1 x 1"][0]["steps"])
        cells = [middle([step_seconds(taken, variant) for taken in rounds]) for variant in VARIANTS]
        print(f"| {batch} | {tokens:.0f} | {' | '.join(cells)} |")
    ratios = [("1 x 1", other) for other in ("2 x 1", "at the end", "seen rows", "1 x 2")]
    heading = [*(f"{a} / {b}" for a, b in ratios), "apart / one part", "waited for sums, ms", "at the end, ms"]
    print(f"\n| examples a step | {' | '.join(heading)} |\n|---:|" + "---|" * len(heading))
    for batch, rounds in steps.items():
        cells = [middle([step_seconds(taken, a) / step_seconds(taken, b) for taken in rounds], 2, 1) for a, b in ratios]
        cells.append(middle([one_rank(taken, "apart") / one_rank(taken, "one part") for taken in rounds], 2, 1))
        cells += [middle([exchange(taken, variant) for taken in rounds]) for variant in TOGETHER[:2]]
        print(f"| {batch} | {' | '.join(cells)} |")


def one_rank(taken: Measured, variant: str) -> float:
    return statistics.fmean(seconds for seconds, _ in taken[variant][0]["steps"])


def exchange(taken: Measured, variant: str) -> float:
    """Seconds per step that the process that waits less, the later one, spends waiting for sums."""
    seconds: list[float] = [sum(s for _, s in one["sums"]) for one in taken[variant]]
    return min(seconds) / len(taken[variant][0]["steps"])


def print_parts(parts: list[Measured]) -> None:
    print("\n| part | seconds, ms |\n|---|---|")
    for name in ("update", "copy"):
        for where in ("one", "both"):
            print(f"| {name}, {where} | {middle([statistics.median(part[where][name]) for part in parts])} |")
    for size in parts[0]["reduce"]:
        seconds = [statistics.median(part["reduce"][size]) for part in parts]
        rate = int(size) / statistics.median(seconds) / 1e9
        print(f"| all-reduce of {int(size):,} bytes ({rate:.2f} GB/s) | {middle(seconds, 3)} |")


def print_line(steps: dict[str, list[Measured]]) -> None:
    """Print the line through seconds over tokens, of single steps of one process and of parts of two at once."""
    for variant in ("1 x 1", "apart"):
        points = [p for rounds in steps.values() for taken in rounds for one in taken[variant] for p in one["steps"]]
        seconds, tokens = np.array(points).T
        slope, start = np.polyfit(tokens, seconds, 1)
        left = np.abs(seconds - start - slope * tokens) / seconds
        print(
            f"{variant}: {start * 1000:.1f} ms + {slope * 1e6:.1f} us a token; single steps differ from this by "
            f"{np.median(left):.1%} (median)"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--batches", default="16,32,64")
    parser.add_argument("--precision", choices=("bf16", "float32"), default="bf16")
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    machine = environment(torch.device("cpu"))
    now = f"{datetime.now(UTC):%Y-%m-%d %H:%M}"
    heading = f"{now} UTC; {machine['cpu']}, {machine['cores']} cores, torch {machine['torch']}, {chosen.precision}"
    print(f"{heading}, commit {machine['commit']}; load {os.getloadavg()[0]:.1f}", flush=True)
    with started() as pair:
        facts = pair.facts
        steps = {
            batch: measure_steps(pair, int(batch), chosen.rounds, chosen.steps, chosen.precision)
            for batch in chosen.batches.split(",")
        }
        parts = measure_parts(pair, facts["parameters"], chosen.rounds)
    print_steps(steps)
    print_parts(parts)
    print_line(steps)
    if chosen.out is not None:
        content = {"heading": heading, "precision": chosen.precision, **facts, "steps": steps, "parts": parts}
        chosen.out.write_text(json.dumps(content), encoding="utf-8")


if __name__ == "__main__":
    main()
