"""Measures training on long texts and with a large encoder: examples/s and peak memory, compared with tuned Trainer.

    PYTHONPATH=src python benchmarks/long_texts.py [steps] [kernels] [--steps N] [--rounds N] [--mixed] [--out FILE]

steps    BERT-base with texts of 256 and 512 tokens, BERT-large with texts of 128, untrained weights (speed does not
         depend on their values) and random ids, with and without dropout of attention weights. polytask runs the
         training loop of `polytask train` with captured steps; Trainer is tuned as in trainer_gpu.py (bf16, sdpa, fused
         AdamW, grouped by length, six workers). Both take turns, `--rounds` times.
kernels  attention of the same texts: forward and backward pass of our kernels, torch's varlen kernel and padded rows,
         and our kernels with programs of other sizes

Texts all have the same length, so nothing is padded; with `--mixed`, lengths are uniform between a quarter of it and
all of it. Memory is what a variant adds to what the process had before: at most allocated by tensors at a time, and at
most reserved on the device, which includes the memory of graphs and of the allocator. Each result is written to `--out`
as soon as it is measured; a table follows at the end.
"""

import argparse
import gc
import itertools
import json
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
import trainer_gpu
from gpu_training import MANY, Variant
from graph_times import captured, microseconds
from torch import Tensor
from trainer_gpu import CYCLE, LABELS, Ids, trainer_rate

from polytask.build import make_model
from polytask.encoders.attention import attend
from polytask.encoders.bert import Bert, BertShape
from polytask.fused_forms import definition_of
from polytask.kernels import long_attention
from polytask.kernels.attention import attend_varlen
from polytask.kernels.long_attention import Blocks, attend_long
from polytask.machine import environment
from polytask.recipe.records import Recipe
from polytask.runs.folder import RunFolder
from polytask.runs.prepare import Prepared
from polytask.runs.session import make_session
from polytask.settings import MethodChoice, TaskSpec, TrainSettings
from polytask.stream import Layout
from polytask.tasks.task import Task
from polytask.text.packing import Packer
from polytask.text.tokenizer import TextTokenizer
from polytask.types import LabelSpace

LARGE = {"num_hidden_layers": 24, "hidden_size": 1024, "num_attention_heads": 16, "intermediate_size": 4096}
ROWS = [("bert-base", 256, 32), ("bert-base", 512, 16), ("bert-large", 128, 32)]
"""The encoder, the tokens of a text, and the texts of a step."""
DROPOUTS = [0.0, 0.1]
"""Of attention weights; that of hidden states is always 0.1."""
GIB = 2**30
PLANS: dict[str, list[Blocks]] = {
    "FORWARD": [Blocks(64, 64, 4, 3), Blocks(64, 64, 4, 2), Blocks(128, 64, 8, 3), Blocks(128, 128, 8, 2)],
    "QUERIES": [Blocks(64, 64, 4, 2), Blocks(64, 64, 4, 3), Blocks(128, 64, 8, 2), Blocks(64, 128, 8, 2)],
    "KEYS": [Blocks(64, 64, 4, 2), Blocks(64, 64, 4, 1), Blocks(128, 64, 8, 2), Blocks(64, 32, 4, 2)],
}


class Texts:
    """Random ids, as a task's examples."""

    def __init__(self, ids: list[Ids]) -> None:
        self._tokens: list[tuple[npt.NDArray[np.integer], ...]] = [(text[1:-1],) for text in ids]
        self.labels: npt.NDArray[Any] = np.arange(len(ids)) % LABELS

    def __len__(self) -> int:
        return len(self._tokens)

    def tokens(self, index: int) -> tuple[npt.NDArray[np.integer], ...]:
        return self._tokens[index]


def make_texts(count: int, length: int, mixed: bool) -> list[Ids]:
    """Return the token ids of texts, with special tokens."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(length // 4, length + 1, count) if mixed else np.full(count, length)
    return [np.concatenate([[101], rng.integers(1000, 30000, n - 2), [102]]) for n in lengths]


def shape_of(encoder: str, dropout: float) -> BertShape:
    if encoder == "bert-large":
        return BertShape(layers=24, hidden=1024, heads=16, ffn=4096, attention_dropout=dropout)
    return BertShape(attention_dropout=dropout)


def variant_of(encoder: str, length: int, batch: int, dropout: float, texts: list[Ids], folder: Path) -> Variant:
    """A training session of one task whose texts are these ids."""
    train = TrainSettings(
        batch_size=batch, precision="bf16", save_every=MANY, evaluate_every=MANY, steps_per_epoch=MANY
    )
    spec = TaskSpec("topic", "classes", ("text",), "label", "", "", head=MethodChoice("linear"))
    specs, spaces = {"topic": spec}, {"topic": LabelSpace("classes", tuple("abcde"))}
    recipe = Recipe(tasks=specs, max_length=length, train=train, optimizer=MethodChoice("fused_adamw", {"lr": 1e-5}))
    model = make_model(specs, spaces, MethodChoice("none"), lambda: Bert(shape_of(encoder, dropout)))
    parts: Any = {"train": Texts(texts), "dev": Texts(texts[:64])}
    tokenizer = cast(TextTokenizer, None)  # ids need no tokenizer
    packer = Packer(("topic",), 101, 102, length)
    tasks = {"topic": Task(spec, spaces["topic"], parts)}
    prepared = Prepared(recipe, tokenizer, tasks, packer, model, drawn=("topic",), evaluated=("topic",))
    folder.mkdir(parents=True)
    return Variant(make_session(prepared, RunFolder(folder), torch.device("cuda")))


class PeakMemory:
    """The memory that the code inside the context adds, in GiB."""

    allocated = reserved = 0.0

    def __enter__(self) -> "PeakMemory":
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        self.before = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
        return self

    def __exit__(self, *error: object) -> None:
        torch.cuda.synchronize()
        self.allocated = (torch.cuda.max_memory_allocated() - self.before[0]) / GIB
        self.reserved = (torch.cuda.max_memory_reserved() - self.before[1]) / GIB


def measure_row(
    encoder: str, length: int, batch: int, dropout: float, options: argparse.Namespace, folder: Path
) -> dict[str, Any]:
    """Rates and memory of polytask and of Trainer."""
    texts = make_texts(4 * CYCLE * batch, length, options.mixed)
    name = f"{encoder}, attention dropout {dropout}"
    trainer_gpu.SHAPES[name] = {
        **(LARGE if encoder == "bert-large" else {}),
        "attention_probs_dropout_prob": dropout,
    }
    with PeakMemory() as own_memory:
        variant = variant_of(encoder, length, batch, dropout, texts, folder)
        variant.warm_up(60 if options.mixed else 10)
    ours, theirs = [], []
    for number in range(options.rounds + 1):
        with PeakMemory() as trainer_memory:
            rate = trainer_rate(name, batch, True, options.steps if number else 10, texts)
        if number:  # the first round starts Trainer's workers and chooses its kernels
            theirs.append(rate)
            ours.append(variant.rate(options.steps))
    session = variant.session
    reason = session.not_captured if session.captured is None else session.captured.reason
    variant.close()
    return {
        "encoder": encoder,
        "tokens": length,
        "batch": batch,
        "attention_dropout": dropout,
        "lengths": "mixed" if options.mixed else "equal",
        "not_captured": reason,
        "examples_per_second": {"polytask": ours, "trainer": theirs},
        "ratio": statistics.median(a / b for a, b in zip(ours, theirs, strict=True)),
        "peak_allocated_gib": {"polytask": own_memory.allocated, "trainer": trainer_memory.allocated},
        "peak_reserved_gib": {"polytask": own_memory.reserved, "trainer": trainer_memory.reserved},
    }


def measure_steps(options: argparse.Namespace, folder: Path, write: Callable[[dict[str, Any]], None]) -> list[str]:
    lines = [
        f"{'encoder':11} {'tokens':>6} {'batch':>5} {'dropout':>7} {'examples/s':>11} {'Trainer':>8} {'ratio':>6}"
        f" {'GiB':>11} {'Trainer':>11}   (allocated / reserved)"
    ]
    for number, (row, dropout) in enumerate(itertools.product(ROWS, DROPOUTS)):
        result = measure_row(*row, dropout, options, folder / str(number))
        write({"part": "steps", **result})
        rates = {who: statistics.median(rates) for who, rates in result["examples_per_second"].items()}
        memory = {
            who: f"{result['peak_allocated_gib'][who]:5.1f}/{result['peak_reserved_gib'][who]:5.1f}" for who in rates
        }
        encoder, tokens, batch = row
        lines.append(
            f"{encoder:11} {tokens:6} {batch:5} {dropout:7.1f} {rates['polytask']:11,.0f} {rates['trainer']:8,.0f} "
            f"{result['ratio']:6.2f} {memory['polytask']:>11} {memory['trainer']:>11}"
            + (f"   not captured: {result['not_captured']}" if result["not_captured"] else "")
        )
        gc.collect()
        torch.cuda.empty_cache()
    return lines


# --- attention alone --------------------------------------------------------------------------------------------------
def measure_kernels(options: argparse.Namespace, folder: Path, write: Callable[[dict[str, Any]], None]) -> list[str]:
    lines = ["attention of 8,192 tokens, 12 heads of 64 dimensions, bf16, captured: microseconds"]
    for length, dropout in itertools.product((256, 512), DROPOUTS):
        passes = attention_passes(length, dropout)
        for direction in ("forward", "forward and backward"):
            times = microseconds({name: captured(both[direction]) for name, both in passes.items()}, 5)
            write({"part": "kernels", "tokens": length, "dropout": dropout, "passes": direction, "us": times})
            each = ", ".join(f"{name} {us:.0f}" for name, us in times.items())
            lines.append(f"  {length} tokens, dropout {dropout}, {direction}: {each}")
        for plan, blocks in PLANS.items():
            times = tuned(plan, blocks, attention_passes(length, dropout)["long"]["forward and backward"])
            write({"part": "kernels", "tokens": length, "dropout": dropout, "plan": plan, "us": times})
            lines.append(f"    {plan:8} " + ", ".join(f"{name} {us:.0f}" for name, us in times.items()))
    return lines


def attention_passes(length: int, dropout: float) -> dict[str, dict[str, Callable[[], object]]]:
    """For each way of computing attention, a forward pass, and a forward and a backward pass."""
    lengths = (length,) * (8192 // length)
    cu = torch.arange(len(lengths) + 1, dtype=torch.int32, device="cuda") * length
    layout = Layout(cu, lengths, ((0, len(lengths)),), ((0, 8192),))
    shape = (8192, 12, 64)
    q, k, v = (torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
    grad = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
    ways: dict[str, Callable[[], Tensor]] = {
        "long": lambda: attend_long(q, k, v, cu, dropout, length),
        "padded": lambda: definition_of(attend)(q, k, v, layout, dropout),
    }
    if not dropout:
        ways["varlen"] = lambda: attend_varlen(q, k, v, layout)

    def passes(way: Callable[[], Tensor]) -> dict[str, Callable[[], object]]:
        return {
            "forward": torch.no_grad()(way),
            "forward and backward": lambda: torch.autograd.grad(way(), (q, k, v), grad),
        }

    return {name: passes(way) for name, way in ways.items()}


def tuned(plan: str, blocks: list[Blocks], run: Callable[[], object]) -> dict[str, float]:
    """The times with programs of other sizes."""
    own = getattr(long_attention, plan)
    replays = {}
    for one in blocks:
        setattr(long_attention, plan, one)
        try:
            replays[f"{tuple(one)}{' (current)' if one == own else ''}"] = captured(run)
        except Exception as error:  # a program that needs more shared memory than there is
            print(f"{plan} {tuple(one)}: {str(error).splitlines()[0]}", flush=True)
    setattr(long_attention, plan, own)
    return microseconds(replays, 5)


PARTS = {"steps": measure_steps, "kernels": measure_kernels}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []])
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--mixed", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()

    def write(result: dict[str, Any]) -> None:
        print(json.dumps(result), flush=True)
        if options.out:
            with options.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(result, default=str) + "\n")

    write({"part": "environment", **json.loads(json.dumps(environment(torch.device("cuda")), default=str))})
    with tempfile.TemporaryDirectory() as folder:
        for part in options.parts or PARTS:
            lines = PARTS[part](options, Path(folder) / part, write)
            print("\n".join(lines), flush=True)


if __name__ == "__main__":
    main()
