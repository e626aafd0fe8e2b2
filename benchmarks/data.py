"""Compares reading and tokenizing with `datasets`, and measures the memory that many rows need.

    python benchmarks/data.py speed [ROUNDS] [ROWS]
    python benchmarks/data.py memory [ROWS ...]

`speed`: one csv file of generated texts of about eight words (and one of real texts, if POLYTASK_DATA is a folder with
them), from the file to token ids and labels on disk, with nothing cached. polytask (reader, checks of every row,
tokenizer, store) and `datasets` (`load_dataset("csv")`, then `map(batched=True)` with transformers' fast tokenizer of
the same encoder: once as in its documentation, once with token ids only) take turns in one process.

`memory`: the peak memory of a process, with each stage in a separate process: `polytask check` of generated files with
a cold cache and with a warm one, and a run of 20 steps. Prints, for each number of rows, the seconds and the peak in
MiB, in total and without pages of files (which the system can reclaim), and at the end the bytes per row.
All files are in a temporary folder, which is deleted.
"""

import importlib
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from polytask import describe_task, find_encoder, recipe_from, rehearse, start_training
from polytask.machine import environment
from polytask.settings import TaskSpec
from polytask.tasks.task import read_split
from polytask.text.tokenizer import TextTokenizer
from polytask.types import LabelSpace

CLASSES, DEV_SHARE, STEPS = 5, 100, 20
LABELS = LabelSpace("classes", tuple(map(str, range(CLASSES))))
Tokenize = Callable[[TaskSpec], int]
STAGES = ("check, cold cache", "check, warm cache", "20 steps")


def write_csv(file: Path, rows: int, seed: int) -> None:
    """Write texts of 5 to 11 words from a list of some thousands, each with a class."""
    rng = random.Random(seed)
    vocabulary = (find_encoder("minilm") / "vocab.txt").read_text(encoding="utf-8").split("\n")
    words = [word for word in vocabulary[2000:12000] if word.isascii() and word.isalpha()]
    with file.open("w", encoding="utf-8") as content:
        content.write("text,label\n")
        for _ in range(rows):
            content.write(f"{' '.join(rng.choices(words, k=rng.randint(5, 11)))},{rng.randrange(CLASSES)}\n")


# --- speed ------------------------------------------------------------------------------------------------------------
def with_polytask(spec: TaskSpec, tokenizer: TextTokenizer) -> int:
    with tempfile.TemporaryDirectory() as cache:
        split = read_split(spec, LABELS, spec.dev, tokenizer, Path(cache), "train")
        return int(split.store.lengths().sum())


def with_datasets(spec: TaskSpec, tokenizer: Any, **options: bool) -> int:
    def encode(batch: dict[str, list[str]]) -> Any:
        texts = [[text or "" for text in batch[column]] for column in spec.text]
        return tokenizer(*texts, truncation=True, max_length=512, add_special_tokens=False, **options)

    load = importlib.import_module("datasets").load_dataset  # not imported where memory is measured
    with tempfile.TemporaryDirectory() as cache:
        delimiter = "\t" if spec.dev.endswith(".tsv") else ","
        rows = load("csv", data_files=spec.dev, cache_dir=cache, split="train", delimiter=delimiter)
        encoded = rows.map(encode, batched=True, remove_columns=list(spec.text))
        return int(np.diff(encoded.data["input_ids"].combine_chunks().offsets.to_numpy()).sum())


def speed(rounds: int, rows: int) -> None:
    importlib.import_module("datasets").disable_progress_bars()
    folder = find_encoder("minilm")
    fast = importlib.import_module("transformers").AutoTokenizer.from_pretrained(folder)
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / "generated.csv"
        write_csv(file, rows, 0)
        specs = {"generated": TaskSpec("t", "classes", ("text",), "label", str(file), str(file))}
        if data := os.environ.get("POLYTASK_DATA"):
            phrases = str(Path(data) / "sst-phrases-train.tsv")
            specs["SST phrases"] = TaskSpec("t", "classes", ("phrase",), "sentiment", phrases, phrases)
        only_ids: dict[str, Any] = {"return_token_type_ids": False, "return_attention_mask": False}
        for name, spec in specs.items():
            variants: dict[str, Callable[[], Tokenize]] = {
                # A new tokenizer for each round, because it caches words.
                "polytask": lambda: partial(with_polytask, tokenizer=TextTokenizer.load(folder)),
                "datasets.map": lambda: partial(with_datasets, tokenizer=fast),
                "datasets.map, only ids": lambda: partial(with_datasets, tokenizer=fast, **only_ids),
            }
            compare(name, spec, variants, rounds)


def compare(name: str, spec: TaskSpec, variants: dict[str, Callable[[], Tokenize]], rounds: int) -> None:
    tokens = {variant: make()(spec) for variant, make in variants.items()}
    seconds: dict[str, list[tuple[float, float]]] = {variant: [] for variant in variants}
    for _ in range(rounds):
        for variant, make in variants.items():
            run = make()
            started, worked = time.perf_counter(), time.process_time()
            run(spec)
            seconds[variant].append((time.perf_counter() - started, time.process_time() - worked))
    with open(spec.dev, encoding="utf-8") as content:
        rows = sum(1 for _ in content) - 1
    print(f"\n{name}: {rows:,} rows, {tokens['polytask']:,} tokens, {rounds} rounds\n")
    print("| | rows/s | time / polytask's | processor time / polytask's | tokens |\n|---|---|---|---|---|")
    for variant, times in seconds.items():
        cells = [f"{rows / statistics.median(passed for passed, _ in times):,.0f}"]
        for kind in (0, 1):
            ratios = [a[kind] / b[kind] for a, b in zip(times, seconds["polytask"], strict=True)]
            low, high = np.quantile(ratios, [0.1, 0.9])
            cells.append(f"{statistics.median(ratios):.2f} ({low:.2f} to {high:.2f})")
        print(f"| {variant} | {' | '.join(cells)} | {tokens[variant]:,} |")


# --- memory -----------------------------------------------------------------------------------------------------------
def recipe(folder: Path) -> dict[str, Any]:
    files = {split: str(folder / f"{split}.csv") for split in ("train", "dev")}
    return {
        "name": "many-rows",
        "encoder": "minilm",
        "max_length": 64,
        "tasks": {"topic": {"kind": "classes", "text": "text", "label": "label", **files}},
        "train": {"epochs": 1, "batch_size": 16},
    }


def stage(name: str, folder: Path) -> None:
    """Run one stage in this process, and print its seconds and its memory."""
    started, peak = time.perf_counter(), Peak()
    content = recipe(folder)
    if name.startswith("check"):
        prepared = rehearse(recipe_from(content))
        describe_task(prepared.tasks["topic"], prepared)
        prepared.findings()
    else:
        running = start_training(recipe_from(content), folder / "run")
        for report in running.steps():
            if report.step == STEPS:
                break
    seconds = time.perf_counter() - started
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"seconds": seconds, "peak": most, "own": peak.stop()}))


class Peak:
    """Measures the peak memory without pages of files, a hundred times per second."""

    def __init__(self) -> None:
        self.most, self._stopped = 0.0, threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def _sample(self) -> None:
        while not self._stopped.wait(0.01):
            for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
                if line.startswith("RssAnon:"):
                    self.most = max(self.most, int(line.split()[1]) / 1024)

    def stop(self) -> float:
        self._stopped.set()
        self._thread.join()
        return self.most


def memory(counts: list[int]) -> None:
    results: dict[str, list[dict[str, float]]] = {name: [] for name in STAGES}
    print("| rows | stage | seconds | peak MiB | without pages of files |\n|---|---|---|---|---|")
    for count in counts:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            write_csv(folder / "train.csv", count, 0)
            write_csv(folder / "dev.csv", max(1000, count // DEV_SHARE), 1)
            for part in STAGES:
                command = [sys.executable, __file__, "stage", part, name]
                variables = {**os.environ, "POLYTASK_CACHE": str(folder / "cache")}
                done = subprocess.run(command, env=variables, check=True, capture_output=True, text=True)
                took = json.loads(done.stdout.splitlines()[-1])
                results[part].append(took)
                cells = [f"{count:,}", part, *(f"{took[key]:,.0f}" for key in ("seconds", "peak", "own"))]
                print(f"| {' | '.join(cells)} |", flush=True)
    print()
    for part, took in results.items():
        for key, what in (("peak", "in total"), ("own", "without pages of files")):
            if len(counts) > 1:
                each = (took[-1][key] - took[0][key]) * 2**20 / (counts[-1] - counts[0])
                print(f"{part}: {each:.0f} bytes per additional row {what}")


def main(what: str, *arguments: str) -> None:
    if what == "stage":
        stage(arguments[0], Path(arguments[1]))
        return
    about = environment(torch.device("cpu"))
    print(f"{about['cpu']}, {about['cores']} cores, commit {about['commit']}; load {os.getloadavg()[0]:.1f}")
    if what == "speed":
        speed(int(arguments[0]) if arguments else 5, int(arguments[1]) if len(arguments) > 1 else 50_000)
    else:
        memory([int(count) for count in arguments] or [1_000_000, 3_000_000, 10_000_000])


if __name__ == "__main__":
    main(*(sys.argv[1:] or ["speed"]))
