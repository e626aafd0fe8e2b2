"""Reading and tokenizing beside `datasets`, and the memory that many rows take.

    python benchmarks/data.py speed [ROUNDS] [ROWS]
    python benchmarks/data.py memory [ROWS ...]

`speed`: one csv file of generated texts of about eight words (and of real ones, where POLYTASK_DATA is the folder that
has them), from the file to token ids and labels on disk, nothing cached. polytask (its reader, its checks of every row,
its tokenizer, its store) and `datasets` (`load_dataset("csv")`, then `map(batched=True)` with transformers' fast
tokenizer of the same encoder: as its documentation has it, and asked for ids alone) take turns inside one process.

`memory`: the peak of a process's memory, each stage in a process of its own: `polytask check` of generated files with a
cold cache and with a warm one, and a run of 20 steps. For each number of rows its seconds and its peak in MiB, in all
and without the pages of files (which the system takes back when it needs them), and at the end bytes for each row.
Files lie in a temporary folder, which is deleted.
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
Way = Callable[[TaskSpec], int]
STAGES = ("check, cold cache", "check, warm cache", "20 steps")


def write_csv(file: Path, rows: int, seed: int) -> None:
    """Texts of 5 to 11 words out of some thousands, and a class."""
    rng = random.Random(seed)
    vocabulary = (find_encoder("minilm") / "vocab.txt").read_text(encoding="utf-8").split("\n")
    words = [word for word in vocabulary[2000:12000] if word.isascii() and word.isalpha()]
    with file.open("w", encoding="utf-8") as content:
        content.write("text,label\n")
        for _ in range(rows):
            content.write(f"{' '.join(rng.choices(words, k=rng.randint(5, 11)))},{rng.randrange(CLASSES)}\n")


# --- speed ------------------------------------------------------------------------------------------------------------
def ours(spec: TaskSpec, tokenizer: TextTokenizer) -> int:
    with tempfile.TemporaryDirectory() as cache:
        split = read_split(spec, LABELS, spec.train, tokenizer, Path(cache), "train")
        return int(split.store.lengths().sum())


def theirs(spec: TaskSpec, tokenizer: Any, **options: bool) -> int:
    def encode(batch: dict[str, list[str]]) -> Any:
        texts = [[text or "" for text in batch[column]] for column in spec.text]
        return tokenizer(*texts, truncation=True, max_length=512, add_special_tokens=False, **options)

    load = importlib.import_module("datasets").load_dataset  # not of the processes whose memory is measured
    with tempfile.TemporaryDirectory() as cache:
        delimiter = "\t" if spec.train.endswith(".tsv") else ","
        rows = load("csv", data_files=spec.train, cache_dir=cache, split="train", delimiter=delimiter)
        encoded = rows.map(encode, batched=True, remove_columns=list(spec.text))
        return int(np.diff(encoded.data["input_ids"].combine_chunks().offsets.to_numpy()).sum())


def speed(rounds: int, rows: int) -> None:
    importlib.import_module("datasets").disable_progress_bars()
    folder = find_encoder("minilm")
    fast = importlib.import_module("transformers").AutoTokenizer.from_pretrained(folder)
    with tempfile.TemporaryDirectory() as made:
        file = Path(made) / "generated.csv"
        write_csv(file, rows, 0)
        specs = {"generated": TaskSpec("t", "classes", ("text",), "label", str(file), str(file))}
        if data := os.environ.get("POLYTASK_DATA"):
            phrases = str(Path(data) / "sst-phrases-train.tsv")
            specs["SST phrases"] = TaskSpec("t", "classes", ("phrase",), "sentiment", phrases, phrases)
        only_ids: dict[str, Any] = {"return_token_type_ids": False, "return_attention_mask": False}
        for name, spec in specs.items():
            ways: dict[str, Callable[[], Way]] = {
                "polytask": lambda: partial(ours, tokenizer=TextTokenizer.load(folder)),  # which remembers no word yet
                "datasets.map": lambda: partial(theirs, tokenizer=fast),
                "datasets.map, ids alone": lambda: partial(theirs, tokenizer=fast, **only_ids),
            }
            compare(name, spec, ways, rounds)


def compare(name: str, spec: TaskSpec, ways: dict[str, Callable[[], Way]], rounds: int) -> None:
    tokens = {way: make()(spec) for way, make in ways.items()}
    seconds: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
    for _ in range(rounds):
        for way, make in ways.items():
            run = make()
            started, worked = time.perf_counter(), time.process_time()
            run(spec)
            seconds[way].append((time.perf_counter() - started, time.process_time() - worked))
    with open(spec.train, encoding="utf-8") as content:
        rows = sum(1 for _ in content) - 1
    print(f"\n{name}: {rows:,} rows, {tokens['polytask']:,} tokens, {rounds} rounds\n")
    print("| | rows/s | time / polytask's | processor time / polytask's | tokens |\n|---|---|---|---|---|")
    for way, times in seconds.items():
        cells = [f"{rows / statistics.median(passed for passed, _ in times):,.0f}"]
        for kind in (0, 1):
            ratios = [a[kind] / b[kind] for a, b in zip(times, seconds["polytask"], strict=True)]
            low, high = np.quantile(ratios, [0.1, 0.9])
            cells.append(f"{statistics.median(ratios):.2f} ({low:.2f} to {high:.2f})")
        print(f"| {way} | {' | '.join(cells)} | {tokens[way]:,} |")


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
    """In a process of its own: does it, and prints what it took."""
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
    """The most memory without pages of files, looked at a hundred times a second."""

    def __init__(self) -> None:
        self.most, self._over = 0.0, threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while not self._over.wait(0.01):
            for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
                if line.startswith("RssAnon:"):
                    self.most = max(self.most, int(line.split()[1]) / 1024)

    def stop(self) -> float:
        self._over.set()
        self._thread.join()
        return self.most


def memory(counts: list[int]) -> None:
    found: dict[str, list[dict[str, float]]] = {name: [] for name in STAGES}
    print("| rows | stage | seconds | peak MiB | without pages of files |\n|---|---|---|---|---|")
    for count in counts:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            write_csv(folder / "train.csv", count, 0)
            write_csv(folder / "dev.csv", max(1000, count // DEV_SHARE), 1)
            for part in STAGES:
                command = [sys.executable, __file__, "stage", part, name]
                given = {**os.environ, "POLYTASK_CACHE": str(folder / "cache")}
                done = subprocess.run(command, env=given, check=True, capture_output=True, text=True)
                took = json.loads(done.stdout.splitlines()[-1])
                found[part].append(took)
                cells = [f"{count:,}", part, *(f"{took[key]:,.0f}" for key in ("seconds", "peak", "own"))]
                print(f"| {' | '.join(cells)} |", flush=True)
    print()
    for part, took in found.items():
        for key, what in (("peak", "in all"), ("own", "without pages of files")):
            if len(counts) > 1:
                each = (took[-1][key] - took[0][key]) * 2**20 / (counts[-1] - counts[0])
                print(f"{part}: {each:.0f} bytes a row more {what}")


def main(what: str, *given: str) -> None:
    if what == "stage":
        stage(given[0], Path(given[1]))
        return
    about = environment(torch.device("cpu"))
    print(f"{about['cpu']}, {about['cores']} cores, commit {about['commit']}; load {os.getloadavg()[0]:.1f}")
    if what == "speed":
        speed(int(given[0]) if given else 5, int(given[1]) if len(given) > 1 else 50_000)
    else:
        memory([int(count) for count in given] or [1_000_000, 3_000_000, 10_000_000])


if __name__ == "__main__":
    main(*(sys.argv[1:] or ["speed"]))
