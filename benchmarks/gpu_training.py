"""Compares training on a GPU with Hugging Face's Trainer: the same shapes, lengths and batch sizes.

    python benchmarks/gpu_training.py [speed] [adapters] [rate] [profile] [--steps N] [--rounds N]
        [--shape SHAPE] [--batch N] [--out FILE.json]

Untrained weights with the shapes of BERT-base and MiniLM (speed does not depend on their values), and the texts of
trainer_gpu.py (4 to 128 random ids, 29 on average). polytask has three tasks, and each step draws one of them. It runs
the training loop of `polytask train` (`Session.fit`, with reports and journal), in bf16 with fused AdamW, dropout 0.1
on hidden states and none on attention weights. Steps that capture a graph are not counted: each shape costs about a
tenth of a second once. All variants take turns, `--rounds` times; a ratio compares rates of the same round.

speed     Trainer with its defaults (float32) and tuned (bf16, sdpa, grouped by length, fused AdamW, six workers);
          polytask's step launched kernel by kernel, and captured
adapters  steps with adapters, with heads only and with frozen encoders, all captured; peft's LoRA for comparison
rate      the share of the GPU's matmul rate that a step of 16k tokens reaches
profile   the time of a step by kind of kernel
"""

import argparse
import json
import math
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from trainer_gpu import CYCLE, make_examples, trainer_rate

from polytask.build import make_model
from polytask.encoders.bert import Bert, BertShape
from polytask.machine import environment
from polytask.recipe.records import Recipe
from polytask.runs.folder import RunFolder
from polytask.runs.prepare import Prepared
from polytask.runs.session import make_session
from polytask.settings import MethodChoice, TaskSpec, TrainSettings
from polytask.tasks.task import Task
from polytask.text.masking import Masker
from polytask.text.packing import Packer
from polytask.text.tokenizer import TextTokenizer
from polytask.training.groups import freeze
from polytask.training.loop import Session
from polytask.types import YES_NO, LabelSpace, StepReport

SHAPES = {
    "bert-base": BertShape(attention_dropout=0.0),
    "minilm": BertShape(layers=6, hidden=384, heads=12, ffn=1536, attention_dropout=0.0),
}
SPACES = {"topic": LabelSpace("classes", ("a", "b", "c", "d", "e")), "same": YES_NO, "alike": LabelSpace("score")}
BATCHES = [32, 256]
MANY = 10**9
WINDOW = 50  # steps
MOST_WINDOWS = 20


class Examples:
    """Random ids of random lengths; two texts each if `pairs`."""

    def __init__(self, task: str, count: int, pairs: bool = False) -> None:
        rng = np.random.default_rng(len(task))
        self._tokens: list[tuple[npt.NDArray[np.integer], ...]] = [
            (ids[1:-1],) * (2 if pairs else 1) for ids in make_examples(count, len(task))
        ]
        classes = task == "topic"
        self.labels: npt.NDArray[Any] = rng.integers(0, 5 if classes else 2, count)
        self.labels = self.labels if classes else self.labels.astype(np.float32)

    def __len__(self) -> int:
        return len(self._tokens)

    def tokens(self, index: int) -> tuple[npt.NDArray[np.integer], ...]:
        return self._tokens[index]


def session_of(
    shape: str,
    batch: int,
    folder: Path,
    adapter: str = "none",
    sampler: str = "proportional",
    *,
    methods: Mapping[str, Any] | None = None,
    heads: Mapping[str, str] | None = None,
    **settings: Any,
) -> Session:
    """A session of a recipe whose tasks have random ids instead of texts.

    `methods`: further fields of the recipe. `heads`: the heads of some tasks; those of pairs make pairs of the texts,
    and a task `text` is plain text.
    """
    train = TrainSettings(
        batch_size=batch, precision="bf16", save_every=MANY, evaluate_every=MANY, steps_per_epoch=MANY, **settings
    )
    heads = heads or {}
    spaces = SPACES | ({"text": LabelSpace("text", vocabulary=SHAPES[shape].vocabulary)} if "text" in heads else {})
    pairs = {task for task, head in heads.items() if head in ("bi", "cosine", "cross", "joint")}
    specs = {
        task: TaskSpec(
            *(task, space.kind, ("text",) * (1 + (task in pairs)), "label", "", ""),
            head=MethodChoice(heads.get(task, "linear")),
        )
        for task, space in spaces.items()
    }
    fields = {"optimizer": MethodChoice("fused_adamw", {"lr": 1e-5}), **(methods or {})}
    recipe = Recipe(tasks=specs, max_length=128, sampler=MethodChoice(sampler), train=train, **fields)
    model = make_model(specs, spaces, MethodChoice(adapter), lambda: Bert(SHAPES[shape]))
    freeze(model, train)
    packer = Packer(tuple(spaces), 101, 102, 128, Masker(103, SHAPES[shape].vocabulary, tuple(range(999))))
    tasks: Any = {
        task: Task(
            spec,
            spaces[task],
            {name: Examples(task, count, task in pairs) for name, count in (("train", 4096), ("dev", 64))},  # type: ignore[misc]
        )
        for task, spec in specs.items()
    }
    names, tokenizer = tuple(spaces), cast(TextTokenizer, None)  # ids need no tokenizer
    prepared = Prepared(recipe, tokenizer, tasks, packer, model, drawn=names, evaluated=names)
    folder.mkdir(parents=True)
    return make_session(prepared, RunFolder(folder), torch.device("cuda"))


class Variant:
    """A session that continues from round to round."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.steps: Iterator[StepReport] = session.fit()

    def warm_up(self, steps: int) -> None:
        for _ in range(steps):
            next(self.steps)
        torch.cuda.synchronize()

    def rate(self, steps: int) -> float:
        """Examples a second, of windows of 50 steps in which no shape was met for the first or the second time."""
        _, examples, seconds = self._measured(steps)
        return examples / seconds

    def steps_rate(self, steps: int) -> float:
        """Steps a second of the same windows."""
        taken, _, seconds = self._measured(steps)
        return taken / seconds

    def _measured(self, steps: int) -> tuple[int, int, float]:
        taken, examples, seconds, left = 0, 0, 0.0, MOST_WINDOWS
        while taken < steps:
            before = self._captured()
            torch.cuda.synchronize()
            started = time.perf_counter()
            count = sum(next(self.steps).examples for _ in range(WINDOW))
            torch.cuda.synchronize()
            left -= 1
            if self._captured() == before or left < 0:
                taken, examples, seconds = taken + WINDOW, examples + count, seconds + time.perf_counter() - started
        return taken, examples, seconds

    def _captured(self) -> list[bool]:
        captured = self.session.captured
        return [] if captured is None else [graph.graph is not None for graph in captured.graphs.entries.values()]

    def close(self) -> None:
        if self.session.captured is not None and self.session.captured.reason is not None:
            print(f"    not captured: {self.session.captured.reason}")
        self.session.running_step = None


def in_turns(variants: dict[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Return the rates of each round. An extra first round is not counted: Trainer starts its workers in it."""
    all_rates: dict[str, list[float]] = {name: [] for name in variants}
    for number in range(rounds + 1):
        for name, rate in variants.items():
            took = rate()
            if number:
                all_rates[name].append(took)
    return all_rates


def ratios(all_rates: dict[str, list[float]], one: str, other: str) -> str:
    each = sorted(a / b for a, b in zip(all_rates[one], all_rates[other], strict=True))
    return f"{statistics.median(each):.2f} ({each[0]:.2f} to {each[-1]:.2f})"


def speed(steps: int, rounds: int, folder: Path) -> dict[str, Any]:
    results = {}
    for shape in SHAPES:
        for batch in BATCHES:
            own = {
                "kernel by kernel": Variant(session_of(shape, batch, folder / f"{shape}-{batch}-a", capture=False)),
                "captured": Variant(session_of(shape, batch, folder / f"{shape}-{batch}-b")),
            }
            for name, variant in own.items():
                variant.warm_up(10 if name == "kernel by kernel" else 120)
            examples = make_examples(4 * CYCLE * batch)
            variants: dict[str, Callable[[], float]] = {
                "Trainer, default": partial(trainer_rate, shape, batch, False, steps, examples),
                "Trainer, tuned": partial(trainer_rate, shape, batch, True, steps, examples),
            }
            variants |= {
                name: partial(variant.rate, steps if name == "kernel by kernel" else 4 * steps)
                for name, variant in own.items()
            }
            all_rates = in_turns(variants, rounds)
            results[f"{shape}, {batch}"] = all_rates
            best = max(("Trainer, default", "Trainer, tuned"), key=lambda name: statistics.median(all_rates[name]))
            print(f"{shape}, {batch} examples per step:")
            for name, rates in all_rates.items():
                ratio = f"{ratios(all_rates, name, best)} x {best}" if name in own else ""
                middle = statistics.median(rates)
                print(f"    {name:20} {middle:9,.0f} examples/s {batch / middle * 1000:8.2f} ms per step  {ratio}")
            for variant in own.values():
                variant.close()
            del own, variants
            torch.cuda.empty_cache()
    return results


def adapters(steps: int, rounds: int, folder: Path) -> dict[str, Any]:
    rows: dict[str, dict[str, Any]] = {
        "plain": {},
        "pal": {"adapter": "pal"},
        "houlsby": {"adapter": "houlsby"},
        "conditional_norm": {"adapter": "conditional_norm"},
        "lora": {"adapter": "lora"},
        "heads only": {"parts": "heads"},
        "houlsby, frozen encoder": {"adapter": "houlsby", "parts": "adapters"},
        "lora, frozen encoder": {"adapter": "lora", "parts": "adapters"},
    }
    results = {}
    for shape in SHAPES:
        for batch in BATCHES:
            own = {}
            for at, (name, options) in enumerate(rows.items()):
                own[name] = Variant(session_of(shape, batch, folder / f"{shape}-{batch}-ad{at}", **options))
                own[name].warm_up(60)
            variants: dict[str, Callable[[], float]] = {
                n: partial(variant.rate, 2 * steps) for n, variant in own.items()
            }
            examples = make_examples(4 * CYCLE * batch)
            variants["peft's lora, Trainer tuned"] = partial(
                trainer_rate, shape, batch, True, steps, examples, lora=True
            )
            all_rates = in_turns(variants, rounds)
            results[f"{shape}, {batch}"] = all_rates
            print(f"{shape}, {batch} examples per step, captured; time / plain step:")
            for name, rates in all_rates.items():
                print(f"    {name:28} {statistics.median(rates):9,.0f} examples/s  {ratios(all_rates, 'plain', name)}")
            print(f"    lora, frozen encoder / peft: {ratios(all_rates, 'lora, frozen encoder', list(variants)[-1])}")
            for variant in own.values():
                variant.close()
            del own
            torch.cuda.empty_cache()
    return results


def matmul_rate() -> float:
    """Return the floating-point operations per second of large matmuls in bf16."""
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    for _ in range(5):
        a @ b
    torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(30):
        a @ b
    torch.cuda.synchronize()
    return 30 * 2 * 8192**3 / (time.perf_counter() - started)


def operations(shape: BertShape, lengths: npt.NDArray[np.int64]) -> float:
    """Return the operations of the matmuls of a step, forward and backward, for sequences of these lengths."""
    per_token = 2 * (4 * shape.hidden**2 + 2 * shape.hidden * shape.ffn)
    attention = 4 * shape.hidden * float((lengths**2).sum())
    return 3 * shape.layers * (per_token * float(lengths.sum()) + attention)


def rate(steps: int, rounds: int, folder: Path) -> dict[str, Any]:
    results = {}
    for shape in SHAPES:
        batch = 16384 // 29
        variant = Variant(session_of(shape, batch, folder / f"{shape}-rate"))
        variant.warm_up(60)
        shares, examples = [], []
        for _ in range(rounds):
            largest = matmul_rate()
            got = variant.rate(steps)
            each = operations(SHAPES[shape], np.array([len(ids) for ids in make_examples(4096)])) / 4096
            shares.append(got * each / largest)
            examples.append(got)
        results[shape] = {"share": shares, "examples": examples, "matmul rate": largest}
        print(
            f"{shape}: {batch} examples per step, about 16k tokens: {statistics.median(examples):,.0f} examples/s, "
            f"{statistics.median(shares):.3f} of {largest / 1e12:.0f} TFLOP/s ({min(shares):.3f} to {max(shares):.3f})"
        )
        variant.close()
        del variant
        torch.cuda.empty_cache()
    return results


KINDS = {  # the first kind with a word that occurs in the kernel's name
    "attention": ("_attend", "flash", "fmha"),
    "norms, dropout, residual sums": ("_norm_forward", "_norm_backward"),
    "activations": ("_gelu",),
    "sums over tokens": ("_column_sums",),
    "matmuls": ("gemm", "cutlass", "nvjet", "cublas", "sm90_xmma", "splitk"),
    "update": ("_adamw", "multi_tensor", "foreach"),
    "embeddings": ("embed", "indexselect", "index_select"),
    "copies": ("memcpy", "memset", "copy", "cat"),
}


def profile(steps: int, rounds: int, folder: Path) -> dict[str, Any]:
    results = {}
    for shape, batch in [(shape, batch) for batch in (32, 565) for shape in SHAPES]:
        variant = Variant(session_of(shape, batch, folder / f"{shape}-{batch}-profile"))
        variant.rate(WINDOW)  # until a window without capturing
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
            variant.warm_up(10)
        kinds: dict[str, float] = defaultdict(float)
        launches = 0
        longest: list[tuple[float, str]] = []
        for event in seen.key_averages():
            name, each = event.key.lower(), event.self_device_time_total / 10 / 1000
            kind = next((kind for kind, words in KINDS.items() if any(w in name for w in words)), "the rest")
            kinds[kind] += each
            launches += event.count
            longest.append((each, event.key[:90]))
        total = sum(kinds.values())
        print(f"{shape}, {batch} examples per step: {total:.2f} ms in {launches / 10:.0f} kernels")
        for kind, each in sorted(kinds.items(), key=lambda item: -item[1]):
            print(f"    {kind:28} {each:7.3f} ms  {each / total:5.0%}")
        for each, name in sorted(longest, reverse=True)[:12]:
            print(f"        {each:7.3f} ms  {name}")
        results[f"{shape}, {batch}"] = {**kinds, "kernels": launches / 10}
        variant.close()
        del variant
        torch.cuda.empty_cache()
    return results


PARTS = {"speed": speed, "adapters": adapters, "rate": rate, "profile": profile}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--shape", choices=SHAPES)
    parser.add_argument("--batch", type=int, choices=BATCHES)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    for name in [*SHAPES]:
        if options.shape not in (None, name):
            del SHAPES[name]
    BATCHES[:] = [options.batch] if options.batch else BATCHES
    machine = environment(torch.device("cuda"))
    print(f"{torch.cuda.get_device_name()}, torch {machine['torch']}")
    results: dict[str, Any] = {"environment": machine, "shapes": {n: asdict(s) for n, s in SHAPES.items()}}
    with tempfile.TemporaryDirectory() as folder:
        for part in options.parts or PARTS:
            started = time.perf_counter()
            results[part] = PARTS[part](options.steps, options.rounds, Path(folder) / part)
            print(f"  ({part}: {math.ceil(time.perf_counter() - started)} s)", flush=True)
    if options.out:
        options.out.write_text(json.dumps(results, indent=1, default=str))


if __name__ == "__main__":
    main()
