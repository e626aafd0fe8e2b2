"""Compares training on this CPU with Hugging Face's `Trainer`, and shows what takes the time of a step.

    python benchmarks/cpu_training.py [ROUNDS] [ATTENTION_DROPOUT] [time|work]

Same MiniLM weights, same texts (the three-task mix in POLYTASK_DATA, or the built-in samples if that is not set), 32
examples per step, torch's fused AdamW, clipping at 1, the encoder's own dropout unless another attention dropout is
given. Trainer with its defaults uses float32, random order and padding to the longest text of a batch; tuned, it uses
bf16, batches grouped by length, and sdpa. polytask is `Running.steps()`, the loop of `polytask train`. All take turns
in one process, in an order that changes with every round; only steps are timed, not the set-up. Prints the ratios
within a round: their median and the middle 80 %. `work` is for shared machines: one thread, and processor time instead
of wall-clock time, so that waiting for a core does not count. The profile splits a step's time by kind of operation,
and compares it with the time that its matmuls would take at the rate of a large one.
"""

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch.profiler import ProfilerActivity, profile
from trainer_gpu import CYCLE, LABELS, Clock, make_model, train

from polytask import Prepared, Running, prepare, read_recipe, start_training
from polytask.machine import environment
from polytask.pretrained.find import find_encoder
from polytask.recipe.records import Recipe
from polytask.text.packing import Part

BATCH, WARM_UP = 32, 2
STEPS = {"Trainer": 15, "Trainer, tuned": CYCLE, "polytask": 25, "polytask, bf16": 50}
"""Steps in a round: enough for each to see the mix; grouped by length, that is a whole cycle."""
RATIOS = {
    "float32: polytask / Trainer": ("polytask", "Trainer"),
    "bf16: polytask / Trainer, tuned": ("polytask, bf16", "Trainer, tuned"),
    "polytask, bf16 / Trainer, float32": ("polytask, bf16", "Trainer"),
}
KINDS = {
    "matmuls": ("mm", "addmm", "bmm", "baddbmm", "mkldnn"),
    "attention kernels": ("scaled_dot_product", "softmax"),
    "dropout": ("bernoulli", "dropout", "random_"),
    "activation": ("gelu", "tanh"),
    "norms": ("layer_norm",),
    "optimizer and clipping": ("adam", "fused_adam", "foreach", "linalg_vector_norm", "Optimizer"),
    "copies, casts, zeros": ("copy", "index", "cat", "stack", "fill", "zero", "contiguous", "empty", "embedding"),
    "sums, products": ("add", "mul", "div", "sum", "sub"),
}

Steps = Callable[[int, int], float]
"""(round, number of steps) -> the seconds they took."""
Now = Callable[[], float]


class AnyClock(Clock):
    """Reads the clock that it is given."""

    def __init__(self, steps: int, now: Now) -> None:
        super().__init__(WARM_UP, steps)
        self.read = now

    def now(self) -> float:
        return self.read()


def recipe_of(precision: str, attention_dropout: str) -> Recipe:
    name = "three-tasks" if "POLYTASK_DATA" in os.environ else "quickstart"
    only_steps = [
        "train.epochs=1",
        *(f"train.{name}=1000000" for name in ("steps_per_epoch", "evaluate_every", "save_every")),
    ]
    same = ["optimizer={name: fused_adamw, lr: 5e-5}", "train.clip=1.0", "train.layer_decay=1", "train.head_lr=null"]
    same += ["train.device=cpu", f"train.precision={precision}", f"train.batch_size={BATCH}"]
    return read_recipe(
        f"recipes/{name}.yaml",
        ["encoder=minilm", "max_length=128", f"attention_dropout={attention_dropout}", *same, *only_steps],
    )


def polytask_steps(running: Running, now: Now) -> Steps:
    steps = running.steps()

    def take(number: int, count: int) -> float:
        for _ in range(WARM_UP):
            next(steps)
        started = now()
        for _ in range(count):
            next(steps)
        return now() - started

    return take


def trainer_steps(rows: list[dict[str, Any]], tuned: bool, attention_dropout: str, now: Now) -> Steps:
    model: Any = make_model(str(find_encoder("minilm")))
    if attention_dropout != "null":
        for layer in model.bert.encoder.layer:
            layer.attention.self.dropout.p = float(attention_dropout)

    def take(number: int, count: int) -> float:
        clock = AnyClock(count, now)
        train(model, rows, clock, BATCH, tuned, seed=number)
        return clock.seconds

    return take


def rows_of(prepared: Prepared) -> list[dict[str, Any]]:
    """Return the same texts for `Trainer`: a pair is one sequence, and all tasks share one head with dummy labels."""
    splits = prepared.splits("train")
    places = [(task, index) for task, split in splits.items() for index in range(len(split))]
    order = np.random.default_rng(0).permutation(len(places))
    wanted = 4 * CYCLE * BATCH
    rows = []
    for number in range(wanted):
        task, index = places[order[number % len(order)]]
        stream = prepared.packer.pack([Part(task, [splits[task].tokens(index)])])
        ids, segments = stream.token_ids_T.numpy(), stream.segment_ids_T.numpy()
        rows.append({"input_ids": ids, "token_type_ids": segments, "labels": number % LABELS})
    return rows


def measure(variants: dict[str, Steps], rounds: int) -> None:
    rates: dict[str, list[float]] = {name: [] for name in variants}
    for number in range(rounds):
        names = list(variants)
        for name in names[number % len(names) :] + names[: number % len(names)]:
            rates[name].append(STEPS[name] * BATCH / variants[name](number, STEPS[name]))
    for name, own_rates in rates.items():
        print(f"{name:34} {statistics.median(own_rates):6.1f} examples/s ({spread(own_rates)})")
    for title, (one, other) in RATIOS.items():
        ratios = [a / b for a, b in zip(rates[one], rates[other], strict=True)]
        print(f"{title:34} {statistics.median(ratios):6.2f} ({spread(ratios, 2)})")


def spread(values: list[float], digits: int = 1) -> str:
    low, high = np.quantile(values, [0.1, 0.9])
    return f"{low:.{digits}f} to {high:.{digits}f}"


def print_profile(running: Running, count: int = 10) -> None:
    steps = running.steps()
    for _ in range(3):
        next(steps)
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        started = time.perf_counter()
        tokens = sum(next(steps).tokens for _ in range(count))
        step_ms = (time.perf_counter() - started) / count * 1000
    milliseconds = dict.fromkeys([*KINDS, "the rest"], 0.0)
    for event in seen.key_averages():
        name = event.key.removeprefix("aten::").lstrip("_").removeprefix("native_")
        kind = next((kind for kind, words in KINDS.items() if name.startswith(words)), "the rest")
        milliseconds[kind] += event.self_cpu_time_total / count / 1000
    milliseconds["the rest"] += max(step_ms - sum(milliseconds.values()), 0.0)
    precision = running.recipe.train.precision
    matrices = sum(
        p.numel() for layer in running.session.model.encoder.layers for p in layer.parameters() if p.ndim == 2
    )
    floor = 6 * matrices * tokens / count / matmul_rate(torch.bfloat16 if precision == "bf16" else torch.float32) * 1000
    print(f"{precision}: {step_ms:.0f} ms per step of {tokens / count:.0f} tokens; floor {floor:.0f} ms")
    for kind, ms in sorted(milliseconds.items(), key=lambda entry: -entry[1]):
        print(f"  {kind:24} {ms:6.1f} ms  {ms / step_ms:5.1%}")


def matmul_rate(dtype: torch.dtype) -> float:
    """Return the floating-point operations per second of a large matmul: the best of eight."""
    x = torch.ones(2048, 2048, dtype=dtype)

    def seconds() -> Iterator[float]:
        for _ in range(8):
            started = time.perf_counter()
            x @ x
            yield time.perf_counter() - started

    return float(2 * 2048**3 / min(seconds()))


def main(rounds: int, attention_dropout: str, clock: str) -> None:
    now = {"time": time.perf_counter, "work": time.process_time}[clock]
    if clock == "work":
        torch.set_num_threads(1)
    machine = environment(torch.device("cpu"))
    versions = f"torch {machine['torch']}, transformers {transformers.__version__}"
    print(f"{machine['cpu']}, {machine['threads']} threads, {versions}; load {os.getloadavg()[0]:.1f} before the start")
    dropout_text = f"attention dropout {attention_dropout} (null: the encoder's)"
    print(f"{clock}, {rounds} rounds, {BATCH} examples per step, {dropout_text}")
    with tempfile.TemporaryDirectory() as place:
        running = {
            precision: start_training(recipe_of(precision, attention_dropout), Path(place) / precision)
            for precision in ("float32", "bf16")
        }
        rows = rows_of(prepare(recipe_of("float32", attention_dropout)))
        print(f"{np.mean([len(row['input_ids']) for row in rows]):.1f} tokens per text on average\n")
        variants = {
            "Trainer": trainer_steps(rows, False, attention_dropout, now),
            "Trainer, tuned": trainer_steps(rows, True, attention_dropout, now),
            "polytask": polytask_steps(running["float32"], now),
            "polytask, bf16": polytask_steps(running["bf16"], now),
        }
        measure(variants, rounds)
        print(f"\nload {os.getloadavg()[0]:.1f} at the end; what takes the time of a step:")
        for one in running.values():
            print_profile(one)


if __name__ == "__main__":
    arguments = [*sys.argv[1:], *("8", "null", "time")[len(sys.argv) - 1 :]]
    main(int(arguments[0]), arguments[1], arguments[2])
