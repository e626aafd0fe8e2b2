"""Measures what each regularizer costs: a training step with it and a plain step on the same stream.

    python benchmarks/regularizers.py [ROUNDS]

MiniLM's shape (untrained), three tasks (one text, a pair in one sequence, a pair in two) in one stream of 32 examples
of about 29 tokens, whole steps with torch's fused AdamW and the regularizers' `after_step`. float32 on the CPU, bf16 on
a GPU if there is one; no attention dropout, so that the GPU uses its varlen kernel. All take turns. Prints the ratio to
the plain step of the same round, its median and its spread. Soft sharing needs tasks with encoders of their own, and is
compared with a plain step of such a model.
"""

import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import torch

from polytask.build import make, make_model
from polytask.encoders.bert import Bert, BertShape
from polytask.machine import environment, pick_device
from polytask.methods import TABLES
from polytask.policies.base import PolicyContext
from polytask.regularizers.base import RegularizerContext
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
HEADS = {"topic": ("linear", 1), "same": ("cross", 2), "alike": ("bi", 2)}
COUNTS = {"topic": 11, "same": 11, "alike": 10}
PACKER = Packer(tuple(SPACES), 101, 102, 64)
ADAPTERS = {"soft_sharing": "own_encoder"}
"""The adapter that a regularizer needs; the others train a plain encoder."""
TARGETS = {"smart": 2.8, "bregman": 1.5, "lnsr": 2.1, "r_drop": 2.1}

Step = Callable[[Stream], None]


def next_stream(rng: np.random.Generator) -> Stream:
    parts = []
    for task, count in COUNTS.items():
        # With special tokens, 29 on average.
        around = {"topic": [27], "same": [13, 13], "alike": [12, 13]}[task]
        lengths = [[int(rng.integers(n - n // 2, n + n // 2 + 1)) for n in around] for _ in range(count)]
        texts = [tuple(rng.integers(1000, 30000, n) for n in pair) for pair in lengths]
        gold = rng.integers(0, 5, count) if task == "topic" else rng.integers(0, 2, count).astype(np.float32)
        parts.append(Part(task, texts, "separate" if HEADS[task][0] == "bi" else "joined", gold))
    return PACKER.pack(parts)


def some_topics(task: str, count: int) -> Iterator[Stream]:
    """Yield a few examples, one per stream: their number does not change the cost of a step."""
    rng = np.random.default_rng(1)
    for _ in range(min(count, 4)):
        yield PACKER.pack([Part(task, [(rng.integers(1000, 30000, 27),)], labels=rng.integers(0, 5, 1))])


def steps_of(adapter: str, choices: Sequence[Sequence[str]], device: torch.device) -> dict[str, Step]:
    """Return a step for each choice of regularizers; all train one model, as costs do not depend on the weights."""
    specs = {
        task: TaskSpec(task, SPACES[task].kind, ("text",) * num_texts, "label", "", "", head=MethodChoice(head))
        for task, (head, num_texts) in HEADS.items()
    }
    model = make_model(specs, SPACES, MethodChoice(adapter), lambda: Bert(SHAPE)).to(device)
    settings = TrainSettings(precision="bf16" if device.type == "cuda" else "float32")
    weights = dict.fromkeys(SPACES, 1.0)
    kinds = {task: space.kind for task, space in SPACES.items()}
    policy = make("policy", MethodChoice("sum"), "benchmark", PolicyContext(weights, kinds, 100))
    optimizer = make(
        "optimizer", MethodChoice("fused_adamw"), "benchmark", parameter_groups(model, settings, 1e-5, 0.01)
    )
    # Some regularizers protect earlier tasks: here topic was learned before the first step.
    context = RegularizerContext(model, weights, 100, learned=("topic",), examples=some_topics)

    def step_with(names: Sequence[str]) -> Step:
        regularizers = {name: make("regularizer", MethodChoice(name), "benchmark", context) for name in names}
        objective = Objective(policy, regularizers)
        for regularizer in regularizers.values():
            regularizer.start(model)

        def step(stream: Stream) -> None:
            take_step(model, optimizer, objective, settings, lambda: Batch(lambda: stream))
            for regularizer in regularizers.values():
                regularizer.after_step(model, 50)
            if device.type == "cuda":
                torch.cuda.synchronize()

        return step

    return {" + ".join(names) or "plain": step_with(names) for names in choices}


def measure(steps: Mapping[str, Step], rounds: int) -> None:
    rng = np.random.default_rng(0)
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(rounds + 2):
        stream = next_stream(rng)
        for name, step in steps.items():
            started = time.perf_counter()
            step(stream)
            if number > 1:  # the first two are warm-ups
                seconds[name].append(time.perf_counter() - started)
    for name, times in seconds.items():
        ratios = sorted(b / a for a, b in zip(seconds["plain"], times, strict=True))
        target = f"   target: at most {TARGETS[name]}" if name in TARGETS else ""
        print(
            f"{name:20} {statistics.median(times) * 1000:8.1f} ms   / plain: "
            f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}){target}"
        )


def main(rounds: int) -> None:
    device = pick_device("auto")
    machine = environment(device)
    print(f"{machine['cpu']}, {machine['device']}, {machine['threads']} threads, torch {machine['torch']}")
    names = list(TABLES["regularizer"])
    plain = [[name] for name in names if name not in ADAPTERS]
    measure(steps_of("none", [[], *plain, ["smart", "bregman"]], device), rounds)
    for adapter in dict.fromkeys(ADAPTERS.values()):
        print(f"with the adapter {adapter}:")
        measure(steps_of(adapter, [[], *([n] for n in names if ADAPTERS.get(n) == adapter)], device), rounds)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
