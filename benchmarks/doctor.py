"""Measures how long it takes to check a million rows: the whole check, and the findings only.

    python benchmarks/doctor.py [ROWS]

Two tasks in csv files in a temporary folder (one text with 20 classes; pairs with yes and no), nine tenths of the rows
for training, with copies, leaks, contradictions and odd characters among them. Prints the seconds of the findings
(`Prepared.findings`), and of the whole check (read, tokenize, build the model, findings) with a cold cache and with a
warm one. The target is the findings of a million rows in under a minute on two cores.
"""

import csv
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from polytask import recipe_from, rehearse
from polytask.machine import environment, pick_device

TARGET = 60.0
WORDS = str.split("""
    the a of to and in is it for on with as was but at by not this that from they we you are have has had were will be
    film music house river letter answer question water winter morning market teacher doctor street window garden
    good bad slow quick happy quiet strange simple clever broken early late long short warm cold bright heavy young
    moved opened asked found carried waited learned turned watched followed wrote called built left stayed began
""")


def texts(rng: random.Random) -> Iterator[str]:
    """Yield texts of about 20 words; some repeat earlier ones, and some contain odd characters."""
    seen: list[str] = []
    while True:
        text = " ".join(rng.choices(WORDS, k=rng.randint(8, 32)))
        if rng.random() < 0.01:
            text += rng.choice([" cafÃ©", "<br />", " \ufffd", "\u200b", " &amp;"])
        if seen and rng.random() < 0.02:
            text = rng.choice(seen)
        elif len(seen) < 10_000:
            seen.append(text)
        yield text


def write_files(folder: Path, rows: int) -> None:
    rng = random.Random(0)
    for task, columns in (("topic", 1), ("same", 2)):
        source = texts(rng)
        for split, count in (("train", rows * 9 // 20), ("dev", rows // 20)):
            with (folder / f"{task}-{split}.csv").open("w", newline="", encoding="utf-8") as file:
                writer = csv.writer(file)
                writer.writerow([*("text", "other")[:columns], "label"])
                for _ in range(count):
                    label = rng.randrange(20) if task == "topic" else rng.randrange(2)
                    writer.writerow([*(next(source) for _ in range(columns)), label])


def timed_check(content: dict[str, object]) -> tuple[float, float, int]:
    """Return the seconds of the whole check, the seconds of the findings, and the number of findings."""
    start = time.perf_counter()
    prepared = rehearse(recipe_from(content))
    before = time.perf_counter()
    findings = prepared.findings()
    end = time.perf_counter()
    return end - start, end - before, len(findings)


def main(rows: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["POLYTASK_CACHE"] = str(folder / "cache")
        write_files(folder, rows)
        size = sum(file.stat().st_size for file in folder.glob("*.csv"))
        tasks = {
            task: {
                "kind": kind,
                "text": text,
                "label": "label",
                **{split: str(folder / f"{task}-{split}.csv") for split in ("train", "dev")},
            }
            for task, kind, text in (("topic", "classes", "text"), ("same", "yes_no", ["text", "other"]))
        }
        # An untrained encoder with the small built-in vocabulary, which splits a text into more tokens than BERT's.
        encoder = {"layers": 1, "hidden": 16, "heads": 2, "ffn": 16, "positions": 512}
        content = {"tasks": tasks, "encoder": encoder, "max_length": 128}
        about = environment(pick_device("cpu"))
        print(f"{rows:,} rows, {size / 2**20:,.0f} MiB of csv, {os.cpu_count()} cores; {about['commit']}")
        for cache in ("cold", "warm"):
            whole, seconds, count = timed_check(content)
            print(f"{cache} cache: {count} findings in {seconds:.1f} s, whole check {whole:.1f} s")
        verdict = "met" if seconds < TARGET else "MISSED"
        print(f"target: {rows:,} rows in under {TARGET:.0f} s: {verdict}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000)
