"""Measures labelling texts with K tasks on this CPU: one model whose tasks share the encoder, against K models.

    python benchmarks/labelling.py [ROUNDS] [TEXTS]

MiniLM, linear heads of five classes with mean pooling, `adapter: none`, the texts of inference.py, all different, from
strings to labels. The variants take turns in one process. Prints texts and tokens per second, the ratio of K models'
time to one model's, and the hours for 10^9 texts, by the clock and of the processor: the median over the rounds, and
the lowest and highest. Where other programs use the machine, run it with OMP_NUM_THREADS=1.
"""

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import torch
from inference import CLASSES, LONGEST, texts

from polytask import Predictor, find_encoder
from polytask.build import make_model
from polytask.machine import environment, multiplies_bf16
from polytask.pretrained.weights import load_encoder
from polytask.runs.bundle import Bundle
from polytask.settings import MethodChoice, TaskSpec
from polytask.text.packing import Packer
from polytask.text.tokenizer import TextTokenizer
from polytask.types import LabelSpace

COUNTS = (1, 3, 9)
TEXTS = 10**9


def predictor(folder: Path, tasks: Sequence[str], precision: str) -> Predictor:
    tokenizer = TextTokenizer.load(folder, LONGEST)
    head = MethodChoice("linear", {"pooling": "mean"})
    specs = {name: TaskSpec(name, "classes", ("text",), "label", "", "", head=head) for name in tasks}
    labels = dict.fromkeys(specs, LabelSpace("classes", CLASSES))
    model = make_model(specs, labels, MethodChoice("none"), lambda: load_encoder(folder)).eval()
    packer = Packer(tuple(specs), tokenizer.cls_id, tokenizer.sep_id, LONGEST, tokenizer.masker)
    return Predictor(Bundle(model, tokenizer, packer, specs, labels, MethodChoice("none")), precision)


def variants(folder: Path, precision: str) -> dict[tuple[str, int], Callable[[list[str]], object]]:
    """By name and number of tasks: one model with the tasks, and models of one task each, one after another."""
    names = [f"task{number}" for number in range(max(COUNTS))]
    one = predictor(folder, names, precision)
    single = [predictor(folder, [name], precision) for name in names]
    found: dict[tuple[str, int], Callable[[list[str]], object]] = {}
    for count in COUNTS:
        found["one model", count] = partial(one.predict_tasks, tasks=names[:count])
        if count > 1:
            found[f"{count} models", count] = partial(in_turn, single[:count])
    return found


def in_turn(models: Sequence[Predictor], asked: list[str]) -> list[object]:
    return [model.predict_tasks(asked) for model in models]


def middle(values: Sequence[float], digits: int) -> str:
    return f"{statistics.median(values):,.{digits}f} ({min(values):,.{digits}f} to {max(values):,.{digits}f})"


def main(rounds: int, count: int) -> None:
    folder, asked = find_encoder("minilm"), texts(count)
    tokenizer = TextTokenizer.load(folder, LONGEST)
    tokens = sum(len(ids) + 2 for ids in tokenizer.encode(asked))
    machine = environment(torch.device("cpu"))
    print(
        f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC; {machine['cpu']}, {machine['threads']} threads, torch "
        f"{machine['torch']}, commit {machine['commit']}; {len(asked)} texts of {tokens / len(asked):.1f} tokens"
    )
    for precision in ("float32", *(("bf16",) if multiplies_bf16(torch.device("cpu")) else ())):
        programs = variants(folder, precision)
        seconds: dict[tuple[str, int], list[tuple[float, float]]] = {name: [] for name in programs}
        for number in range(rounds + 1):
            for name, program in programs.items():
                started, worked = time.perf_counter(), time.process_time()
                program(asked)
                if number:  # the first is a warm-up
                    seconds[name].append((time.perf_counter() - started, time.process_time() - worked))
        print(f"\n{precision}\n\n| tasks | | texts/s | tokens/s | K models / one model | hours | processor hours |")
        print("|---:|---|---|---|---|---|---|")
        for (variant, tasks), times in seconds.items():
            ratio = middle([a / b for (a, _), (b, _) in zip(times, seconds["one model", tasks], strict=True)], 2)
            hours = [middle([TEXTS / len(asked) * t[kind] / 3600 for t in times], 0) for kind in (0, 1)]
            rates = [middle([size / passed for passed, _ in times], 0) for size in (len(asked), tokens)]
            print(f"| {tasks} | {variant} | {' | '.join([*rates, ratio, *hours])} |", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5, int(sys.argv[2]) if len(sys.argv) > 2 else 512)
