"""Measures what gradient policies cost: their steps and plain steps on the same streams.

    python benchmarks/gradient_policies.py [ROUNDS] [EXAMPLES]

MiniLM's shape (untrained), three tasks (one with single texts, two with pairs), EXAMPLES of each (16) of about 29
tokens, whole steps with torch's fused AdamW. float32 on the CPU, bf16 on a GPU if there is one; no attention dropout,
so that the GPU uses its varlen kernel. At the last stage of a sequence of tasks, gem and a_gem use a batch of the last
task and as many remembered examples of every other task; pcgrad and upgrad use a mixed step of all three. All take
turns. Prints ratios within a round, their median and their spread:

- to the plain step (the last task's batch only, or all three tasks in one stream): what the policy costs;
- to its passes (the same streams one by one, with their gradients added up): what keeping the gradients separate costs.

`ops` is the number of tensor operations of a step without views and allocations: what a GPU has to launch.
"""

import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from polytask.build import make, make_model
from polytask.encoders.bert import Bert, BertShape
from polytask.machine import environment, pick_device
from polytask.model import MultiTaskModel
from polytask.policies.base import PolicyContext
from polytask.settings import MethodChoice, TaskSpec, TrainSettings
from polytask.stream import Stream
from polytask.text.packing import Packer, Part
from polytask.training.feed import Batch
from polytask.training.groups import parameter_groups
from polytask.training.objective import Objective
from polytask.training.step import take_step
from polytask.types import YES_NO, LabelSpace

SHAPE = BertShape(layers=6, hidden=384, heads=12, ffn=1536, attention_dropout=0.0)
SPACES = {"topic": LabelSpace("classes", ("a", "b", "c", "d", "e")), "same": YES_NO, "alike": LabelSpace("score")}
TEXTS = {"topic": [27], "same": [13, 13], "alike": [13, 13]}
"""Average number of tokens; with special tokens, 29 in total."""
PACKER = Packer(tuple(SPACES), 101, 102, 64)
NO_KERNEL = {
    *("alias", "as_strided", "detach", "empty", "empty_like", "empty_strided", "expand", "lift_fresh", "permute"),
    *("select", "slice", "split", "split_with_sizes", "squeeze", "t", "transpose", "unbind", "unsqueeze", "view"),
    *("_reshape_alias", "_unsafe_view"),
}
PASSES = {"gem": "three passes", "a_gem": "two passes", "pcgrad": "three passes", "upgrad": "three passes"}
"""The passes that each policy's step consists of."""

Parts = Mapping[str, Part]
Step = Callable[[Parts], None]


class Ops(TorchDispatchMode):
    """Counts the tensor operations inside the `with` block."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func.overloadpacket.__name__ not in NO_KERNEL
        return func(*args, **(kwargs or {}))


def next_parts(rng: np.random.Generator, examples: int) -> Parts:
    parts = {}
    for task, around in TEXTS.items():
        lengths = [[int(rng.integers(n - n // 2, n + n // 2 + 1)) for n in around] for _ in range(examples)]
        texts = [tuple(rng.integers(1000, 30000, n) for n in one) for one in lengths]
        gold = rng.integers(0, 5, examples) if task == "topic" else rng.integers(0, 2, examples).astype(np.float32)
        parts[task] = Part(task, texts, labels=gold)
    return parts


def pack(parts: Parts, *tasks: str) -> Stream:
    return PACKER.pack([parts[task] for task in tasks])


def together(stream: Stream) -> Batch:
    return Batch(lambda: stream)


def separate(stream: Stream, by_task: Sequence[Stream], remembered: Sequence[Stream] = ()) -> Batch:
    return Batch(lambda: stream, *([partial(_same, one) for one in streams] for streams in (by_task, remembered)))


def _same(stream: Stream) -> Stream:
    return stream


class Variants:
    """Steps that all train one model, because their cost does not depend on the weights."""

    def __init__(self, device: torch.device) -> None:
        specs = {
            task: TaskSpec(task, SPACES[task].kind, ("text",) * len(texts), "label", "", "")
            for task, texts in TEXTS.items()
        }
        self.model: MultiTaskModel = make_model(specs, SPACES, MethodChoice("none"), lambda: Bert(SHAPE)).to(device)
        self.settings = TrainSettings(precision="bf16" if device.type == "cuda" else "float32")
        groups = parameter_groups(self.model, self.settings, 1e-5, 0.01)
        self.optimizer = make("optimizer", MethodChoice("fused_adamw"), "benchmark", groups)
        self.context = PolicyContext(dict.fromkeys(SPACES, 1.0), {t: s.kind for t, s in SPACES.items()}, 100)

    def step(self, policy: str, batches: Callable[[Parts], Sequence[Batch]]) -> Step:
        """Return a step with as many passes as `batches` returns."""
        objective = Objective(make("policy", MethodChoice(policy), "benchmark", self.context))

        def take(parts: Parts) -> None:
            passes = batches(parts)
            settings = replace(self.settings, accumulate=len(passes))
            take_step(self.model, self.optimizer, objective, settings, iter(passes).__next__)
            if self.model.device.type == "cuda":
                torch.cuda.synchronize()

        return take

    def in_sequence(self) -> dict[str, Step]:
        """Return steps of the last of three tasks, with memories of the first two."""
        old, new = ("topic", "same"), "alike"

        def own(parts: Parts) -> Stream:
            return pack(parts, new)

        return {
            "plain": self.step("sum", lambda p: [together(own(p))]),
            "two passes": self.step("sum", lambda p: [together(own(p)), together(pack(p, *old))]),
            "three passes": self.step("sum", lambda p: [together(own(p)), *(together(pack(p, task)) for task in old)]),
            "gem": self.step("gem", lambda p: [separate(own(p), [own(p)], [pack(p, task) for task in old])]),
            "a_gem": self.step("a_gem", lambda p: [separate(own(p), [own(p)], [pack(p, *old)])]),
        }

    def mixed(self) -> dict[str, Step]:
        """Return steps of all three tasks."""

        def task_by_task(parts: Parts) -> list[Batch]:
            return [separate(pack(parts, *SPACES), [pack(parts, task) for task in SPACES])]

        return {
            "plain": self.step("sum", lambda p: [together(pack(p, *SPACES))]),
            "three passes": self.step("sum", lambda p: [together(pack(p, task)) for task in SPACES]),
            "pcgrad": self.step("pcgrad", task_by_task),
            "upgrad": self.step("upgrad", task_by_task),
        }


def measure(variants: Mapping[str, Step], rounds: int, examples: int) -> None:
    rng = np.random.default_rng(0)
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    ops: dict[str, int] = {}
    for number in range(rounds + 2):
        parts = next_parts(rng, examples)
        for name, step in variants.items():
            if number == 1:  # the first creates the optimizer's state
                with Ops() as counted:
                    step(parts)
                ops[name] = counted.count
                continue
            started = time.perf_counter()
            step(parts)
            if number > 1:
                seconds[name].append(time.perf_counter() - started)
    for name, times in seconds.items():
        line = f"{name:14} {statistics.median(times) * 1000:8.1f} ms {ops[name]:6} ops"
        for other in dict.fromkeys(("plain", PASSES.get(name, "plain"))):
            ratios = sorted(b / a for a, b in zip(seconds[other], times, strict=True))
            line += f"   / {other}: {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
            line += f", ops {ops[name] / ops[other]:.2f}"
        print(line)


def main(rounds: int, examples: int) -> None:
    device = pick_device("auto")
    machine = environment(device)
    print(f"{machine['cpu']}, {machine['device']}, {machine['threads']} threads, torch {machine['torch']}")
    variants = Variants(device)
    print(f"one task after another, the last of three: {examples} examples of it and of each memory")
    measure(variants.in_sequence(), rounds, examples)
    print(f"three tasks in each step: {examples} examples of each")
    measure(variants.mixed(), rounds, examples)


if __name__ == "__main__":
    main(*[int(text) for text in sys.argv[1:]], *[20, 16][len(sys.argv) - 1 :])
