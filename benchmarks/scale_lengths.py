"""The lengths of real examples, and the time that dividing them among many processes takes."""

import os
import statistics
import time
from pathlib import Path

import numpy as np
import torch
from scale_step import longest_part

from polytask import prepare, read_recipe
from polytask.processes import Processes
from polytask.runs.prepare import Prepared
from polytask.seeds import CommonRandom
from polytask.text.texts import texts_of
from polytask.training.division import Division
from polytask.training.feed import Feed
from polytask.types import Draw

ROOT = Path(__file__).parent.parent


class Lengths:
    """Draws the tokens of a step's examples: of one task, tasks in proportion to their examples."""

    def __init__(self) -> None:
        prepared = prepared_data()
        self.by_task = {}
        for task, examples in prepared.splits("train").items():
            lengths_NW = texts_of(examples, np.arange(len(examples))).lengths_NW
            self.by_task[task] = prepared.packer.lengths(lengths_NW, prepared.model.input_format(task))
        self.random = np.random.default_rng(0)

    def step(self, examples: int) -> list[int]:
        sizes = np.array([len(own) for own in self.by_task.values()])
        task = self.random.choice(list(self.by_task), p=sizes / sizes.sum())
        drawn: list[int] = self.random.choice(self.by_task[str(task)], examples).tolist()
        return drawn

    @property
    def mean(self) -> float:
        """Mean tokens of an example."""
        return float(np.concatenate(list(self.by_task.values())).mean())

    def unevenness(self, examples: int, count: int) -> float:
        """The tokens of the longest part of a step divided by those of the mean part; the mean of some steps."""
        steps = [self.step(examples) for _ in range(max(5, min(40, 200_000 // examples)))]
        return statistics.fmean(longest_part(step, count) * count / sum(step) for step in steps)

    def longest(self, examples: int, count: int) -> float:
        """The tokens of the longest part of an average step."""
        return self.mean * examples / count * self.unevenness(examples, count)

    def __str__(self) -> str:
        every = np.concatenate(list(self.by_task.values()))
        low, middle, high = np.quantile(every, [0.1, 0.5, 0.9])
        return f"{len(every):,} examples of {self.mean:.1f} tokens (deciles {low:.0f}, {middle:.0f}, {high:.0f})"


def prepared_data() -> Prepared:
    return prepare(
        read_recipe(ROOT / f"recipes/{'three-tasks' if 'POLYTASK_DATA' in os.environ else 'quickstart'}.yaml")
    )


def print_division() -> None:
    """Measure drawing a whole step, dividing it and packing one part, as every process does in every step."""
    prepared = prepared_data()
    model = prepared.model
    task = max(model.tasks, key=lambda name: len(prepared.splits("train")[name]))
    formats = {name: model.input_format(name) for name in model.tasks}
    print("\n| processes | examples a step | ms, median of 3 |\n|---:|---:|---:|")
    for count in (2, 8, 64, 512):
        for each in (32, 256):
            division = Division(Processes(count // 2, count), CommonRandom(torch.device("cpu")))
            feed = Feed(prepared.splits("train"), prepared.packer, 0, formats=formats, division=division)
            seconds = []
            for _ in range(4):
                started = time.perf_counter()
                _ = feed.next_batch([Draw(task, each * count)]).together
                seconds.append(time.perf_counter() - started)
            print(f"| {count} | {each * count:,} | {statistics.median(seconds[1:]) * 1000:,.1f} |", flush=True)
