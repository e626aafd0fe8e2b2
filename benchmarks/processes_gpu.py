"""Measures captured training steps whose sums go through NCCL inside the graphs, in a group of one process.

    python benchmarks/processes_gpu.py OUT.jsonl --data DIR [--encoder NAME_OR_FOLDER] [--rounds N] [--steps N]
    python benchmarks/processes_gpu.py OUT.jsonl --device cpu --encoder '{layers: 2, hidden: 32, heads: 4, ffn: 64}'

Trains recipes/three-tasks.yaml with its files in DIR, or without --data recipes/quickstart.yaml with the built-in data.
All variants are in one process, and take the same steps on the same examples in every round, in a random order:

- `one process`: no group
- `one process, one stream`: the same without side streams, which a group does not use either
- `group`: a group of one process, whose sums NCCL starts while the backward pass is still running, as training does
- `group, sent at the end`: the same, but the gradients are sent after the backward pass
- `group, nothing sent`: what dividing the steps costs without the exchange
- `group, not captured`: as `group`, but launched kernel by kernel

Sums in a group of one move no data between devices: what is measured is everything else that several processes add to
a step. Two rounds that are not counted meet all shapes and capture them. On a CPU, steps are not captured, and gloo
sums. Every result is appended to OUT.jsonl as soon as it exists; after --seconds, no new round is started.
"""

import argparse
import json
import os
import random
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from polytask import prepare, read_recipe
from polytask.connection import connect, disconnect
from polytask.kernels.side_stream import SideStream
from polytask.machine import environment, pick_precision
from polytask.processes import ALONE, Processes
from polytask.runs.folder import RunFolder
from polytask.runs.prepare import Prepared
from polytask.runs.session import make_session
from polytask.training.loop import Session
from polytask.types import StepReport

RECIPES = Path(__file__).parent.parent / "recipes"
MANY = 10**5  # steps
WARM_UP = 2
"""Rounds that are not counted: a shape is met in the first and captured in the second."""
WARM_UP_STEPS = 5
"""Of a variant without graphs."""
Result = dict[str, Any]


class OneOfOne(Processes):
    """A process that exchanges everything with a group in which it is alone."""

    @property
    def several(self) -> bool:
        return True


class SentAtTheEnd(OneOfOne):
    """The same, but gradients are sent only when they are waited for: after the backward pass."""

    def start_adding_up(self, tensor: Tensor) -> Callable[[], None]:
        def add_up() -> None:
            self.add_up(tensor)

        return add_up


class NothingSent(OneOfOne):
    """A process that takes its tensors for the sums."""

    def add_up(self, tensor: Tensor) -> Tensor:
        return tensor

    def start_adding_up(self, tensor: Tensor) -> Callable[[], None]:
        return lambda: None


BASE, ONE_STREAM = "one process", "one process, one stream"
VARIANTS: dict[str, tuple[Processes, bool]] = {
    BASE: (ALONE, True),
    ONE_STREAM: (ALONE, True),
    "group": (OneOfOne(), True),
    "group, sent at the end": (SentAtTheEnd(), True),
    "group, nothing sent": (NothingSent(), True),
    "group, not captured": (OneOfOne(), False),
}
"""How each takes its steps, and whether they are captured."""


@dataclass
class Variant:
    """A session that takes the first steps of its run again and again."""

    session: Session
    reports: Iterator[StepReport]
    start: tuple[Any, Any]
    """The states of its sampler and feed before the first step."""

    def take(self, steps: int) -> Result:
        """Take the steps, and return how long they took, with their tokens."""
        session = self.session
        session.sampler.load_state_dict(self.start[0])
        session.feed.load_state_dict(self.start[1])
        last, found = session.step + steps, []
        self._synchronize()
        started = time.perf_counter()
        while session.step < last:
            found.append(next(self.reports))
        session.wait()
        self._synchronize()
        seconds = time.perf_counter() - started
        found += session.pending_reports  # of the last step, which was waited for
        session.pending_reports = []
        assert len(found) == steps, (len(found), steps)
        tokens = sum(report.tokens for report in found)
        return {"steps": steps, "seconds": seconds, "rate": steps / seconds, "tokens": tokens, "state": self.state()}

    def state(self) -> str:
        captured = self.session.captured
        reason = self.session.not_captured if captured is None else captured.reason
        return f"not captured: {reason}" if reason is not None else f"{self._num_graphs()} graphs"

    def _num_graphs(self) -> int:
        assert self.session.captured is not None
        return sum(entry.graph is not None for entry in self.session.captured.graphs.entries.values())

    def _synchronize(self) -> None:
        if self.session.model.device.type == "cuda":
            torch.cuda.synchronize()

    def close(self) -> None:
        """NCCL waits for the graphs that use a connection."""
        self.session.wait()
        if self.session.captured is not None:
            self.session.captured.graphs.clear()


class Results:
    """A file with one line of JSON for each result."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)

    def add(self, what: str, **result: Any) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"what": what, **result}) + "\n")


def prepared_recipe(data: Path | None, encoder: str | None, batch: int, device: torch.device) -> Prepared:
    """The recipe that is measured; it ends, evaluates and saves only after more steps than are taken."""
    path = RECIPES / ("quickstart.yaml" if data is None else "three-tasks.yaml")
    settings = {
        "train.device": device.type,
        "train.precision": pick_precision("auto", device),
        "train.batch_size": batch,
        "train.epochs": 1,
        **dict.fromkeys(("train.steps_per_epoch", "train.evaluate_every", "train.save_every"), MANY),
    }
    settings |= {"data": data.resolve()} if data is not None else {}
    settings |= {"encoder": encoder} if encoder is not None else {}
    return prepare(read_recipe(path, [f"{name}={value}" for name, value in settings.items()]))


def make_variant(prepared: Prepared, name: str, folder: Path, device: torch.device) -> Variant:
    processes, capture = VARIANTS[name]
    recipe = replace(prepared.recipe, train=replace(prepared.recipe.train, capture=capture))
    own = replace(prepared, recipe=recipe, model=deepcopy(prepared.model))
    run = RunFolder(folder)
    session = make_session(own, run, device, processes=processes)
    if name == ONE_STREAM and session.captured is not None:
        session.captured.operations.side_stream = SideStream(torch.device("cpu"))  # which has none
    # As if it had taken a step: the evaluation before the first step is left out.
    session.progress.step = 1
    folder.mkdir()
    run.metrics.write_text('{"kind": "step", "step": 1}\n', encoding="utf-8")
    return Variant(session, session.fit(), (session.sampler.state_dict(), session.feed.state_dict()))


def join_group_of_one() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "1", "RANK": "0"}
    connect()


def measure(variants: dict[str, Variant], options: argparse.Namespace, deadline: float, results: Results) -> None:
    """Take turns, and print the ratios."""
    for number in range(WARM_UP):
        for name, variant in variants.items():
            steps = options.steps if VARIANTS[name][1] else min(WARM_UP_STEPS, options.steps)
            taken = variant.take(steps)
            results.add("warm-up", variant=name, round=number - WARM_UP + 1, **taken)
            print(f"warm-up, {name}: {taken['steps']} steps in {taken['seconds']:.1f} s, {taken['state']}", flush=True)
    order, rates = random.Random(0), dict[str, list[float]]()
    for number in range(1, options.rounds + 1):
        if number > 1 and time.perf_counter() > deadline:
            print(f"no time for round {number} of {options.rounds}", flush=True)
            break
        for name in order.sample(list(variants), len(variants)):
            taken = variants[name].take(options.steps)
            rates.setdefault(name, []).append(taken["rate"])
            results.add("round", variant=name, round=number, **taken)
        print(f"round {number}: {', '.join(f'{name} {rates[name][-1]:.1f}/s' for name in variants)}", flush=True)
    print(f"\n| variant | steps/s | ratio to {BASE} | state |\n|---|---|---|---|")
    for name in variants:
        own = rates[name]
        ratios = [rate / base for rate, base in zip(own, rates[BASE], strict=True)]
        state = variants[name].state()
        results.add("summary", variant=name, rates=own, ratios=ratios, state=state)
        print(f"| {name} | {middle(own, 1)} | {middle(ratios, 3)} | {state} |", flush=True)


def middle(values: list[float], digits: int) -> str:
    low, high = min(values), max(values)
    return f"{statistics.median(values):.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def main() -> None:
    started = time.perf_counter()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--data", type=Path, help="the folder with the files of recipes/three-tasks.yaml")
    parser.add_argument("--encoder", help="a name, a folder, or the shape of an untrained encoder")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--batch", type=int, default=32, help="examples per step")
    parser.add_argument("--steps", type=int, default=100, help="steps of a variant in a round")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=70, help="after which no new round is started")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        sys.exit("torch finds no CUDA device; pass --device cpu")
    device, results = torch.device(options.device), Results(options.out)
    machine, now = environment(device), f"{datetime.now(UTC):%Y-%m-%d %H:%M}"
    asked = {name: None if value is None else str(value) for name, value in vars(options).items()}
    results.add("environment", time=now, **machine, options=asked)
    print(f"{now} UTC; {machine['device']}, {machine['cpu']}, torch {machine['torch']}, commit {machine['commit']}")
    join_group_of_one()
    prepared = prepared_recipe(options.data, options.encoder, options.batch, device)
    train = prepared.recipe.train
    print(f"{prepared.recipe.name}, {train.precision}, {train.batch_size} examples per step; ", end="")
    print(f"data and model after {time.perf_counter() - started:.1f} s", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        variants = {
            name: make_variant(prepared, name, Path(folder) / str(number), device)
            for number, name in enumerate(VARIANTS)
        }
        try:
            measure(variants, options, started + options.seconds, results)
        finally:
            for variant in variants.values():
                variant.close()
    disconnect()
    print(f"{time.perf_counter() - started:.0f} s in all")


if __name__ == "__main__":
    main()
