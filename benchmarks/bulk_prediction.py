"""Compares bulk prediction with plain `polytask predict`, on all cores of this machine: rows per second of each engine.

    POLYTASK_DATA=FOLDER python benchmarks/bulk_prediction.py measure RUN RESULTS.jsonl [ROUNDS] [TEXTS]
    python benchmarks/bulk_prediction.py report RESULTS.jsonl

RUN is a finished run with a task `opinion` of one text, such as that of recipes/quickstart.yaml. The texts are
questions of Quora's dev set: in one Parquet file for plain `predict`, and in four files for the others. Each
measurement is a whole command in a new process, and the programs take turns. A second command has a quarter of the rows
of each file; the difference of the rows, divided by that of the times, is the speed in the steady state, and what this
leaves of the time of a whole command is the time to start.
All programs use the same cores, so the ratio of two speeds is also the ratio of their speeds per core. The same is
computed from the processor time of all processes that a command starts, which other programs on the machine disturb
less. A round appends its times to the results, so that a measurement can be divided into several commands.

Ray gives its workers a low priority (15), which matters only if other programs use the cores; here it is 0, as for all.
"""

import csv
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

FILES = 4
PLAIN = "plain"
PROGRAMS = {
    PLAIN: [],
    "local, 1 worker": ["--engine", "local", "--workers", "1"],
    "local, 2 workers": ["--engine", "local", "--workers", "2"],
    "ray, 1 worker": ["--engine", "ray", "--workers", "1"],
    "ray, 2 workers": ["--engine", "ray", "--workers", "2"],
}


def write_texts(folder: Path, most: int) -> dict[str, int]:
    """Writes the texts to one file and to many, and a quarter of each file; returns the numbers of texts."""
    path = Path(os.environ["POLYTASK_DATA"]) / "cs224n" / "quora-dev.csv"
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    texts = [row[name] for name in ("sentence1", "sentence2") for row in rows][:most]
    table = pa.table({"number": range(len(texts)), "text": texts})
    size = -(-len(texts) // FILES)
    rows_of: dict[str, int] = {}
    for name, most_of_file in (("all", size), ("few", size // 4)):
        (folder / name).mkdir()
        parts = [table.slice(start, min(most_of_file, len(texts) - start)) for start in range(0, len(texts), size)]
        for number, part in enumerate(parts):
            pq.write_table(part, folder / name / f"{number:02}.parquet")
        pq.write_table(pa.concat_tables(parts), folder / f"{name}.parquet")
        rows_of[name] = sum(map(len, parts))
    return rows_of


class ProcessorTime:
    """Adds up the processor time of all processes that have a mark in their environment, also of those that have ended.

    Looks five times per second: the last moments of a process are missed.
    """

    def __init__(self, mark: str) -> None:
        self.mark, self.seconds = mark.encode(), dict[str, float]()
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.watch)
        self.thread.start()

    def watch(self) -> None:
        while not self.ended.wait(0.2):
            for folder in Path("/proc").glob("[0-9]*"):
                with suppress(OSError):
                    self.look(folder)

    def look(self, folder: Path) -> None:
        if folder.name not in self.seconds and self.mark not in (folder / "environ").read_bytes().split(b"\0"):
            return
        user, system = (folder / "stat").read_text().rpartition(")")[2].split()[11:13]
        self.seconds[folder.name] = (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    def total(self) -> float:
        self.ended.set()
        self.thread.join()
        return sum(self.seconds.values())


def seconds_of(name: str, run: str, folder: Path, texts: str) -> tuple[float, float]:
    """The time of one command, from its start to its end, and the processor time of its processes."""
    plain = name == PLAIN
    source, output = folder / (f"{texts}.parquet" if plain else texts), folder / ("out.parquet" if plain else "out")
    words = [sys.executable, "-P", "-m", "polytask", "predict", run, "--task", "opinion", "--input", str(source)]
    words += ["--output", str(output), *PROGRAMS[name]]
    mark = uuid.uuid4().hex
    environment = {**os.environ, "RAY_worker_niceness": "0", "POLYTASK_MEASURED": mark}
    watched, started = ProcessorTime(f"POLYTASK_MEASURED={mark}"), time.perf_counter()
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL, env=environment)
    seconds, processor = time.perf_counter() - started, watched.total()
    if plain:
        output.unlink()
    else:
        shutil.rmtree(output)
    return seconds, processor


def measure(run: str, results: Path, rounds: int = 1, most: int = 16_384) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows = write_texts(folder, most)
        earlier = len(results.read_text().splitlines()) if results.exists() else 0
        for number in range(earlier, earlier + rounds):
            names = list(PROGRAMS)
            turn = number % len(names)
            times = {
                program: {texts: seconds_of(program, run, folder, texts) for texts in ("few", "all")}
                for program in names[turn:] + names[:turn]
            }
            with results.open("a") as file:
                file.write(json.dumps({"rows": rows, "seconds": times}) + "\n")


def report(results: Path) -> None:
    """Prints the median speeds, and the median, lowest and highest ratio to plain prediction in the same round."""
    rounds = [json.loads(line) for line in results.read_text().splitlines()]
    print(f"{rounds[0]['rows']['all']:,} texts, rounds: {len(rounds)}")
    for clock, title in enumerate(("wall-clock", "processor")):
        print(f"\n| {title} time | start s | whole command s | rows/s | / plain | steady state rows/s | / plain |")
        print("|---|---:|---:|---:|---|---:|---|")
        for name in PROGRAMS:
            seconds = statistics.median(one["seconds"][name]["all"][clock] for one in rounds)
            start = statistics.median(
                one["seconds"][name]["all"][clock] - one["rows"]["all"] / steady_speed(one, name, clock)
                for one in rounds
            )
            whole, steady = ([speed(one, name, clock) for one in rounds] for speed in (whole_speed, steady_speed))
            plain = [[speed(one, PLAIN, clock) for one in rounds] for speed in (whole_speed, steady_speed)]
            print(
                f"| {name} | {start:.1f} | {seconds:.1f} | {statistics.median(whole):,.0f} | {ratio(whole, plain[0])} "
                f"| {statistics.median(steady):,.0f} | {ratio(steady, plain[1])} |"
            )


def whole_speed(one: dict[str, Any], name: str, clock: int) -> float:
    return float(one["rows"]["all"] / one["seconds"][name]["all"][clock])


def steady_speed(one: dict[str, Any], name: str, clock: int) -> float:
    few, whole = (one["seconds"][name][texts][clock] for texts in ("few", "all"))
    return float((one["rows"]["all"] - one["rows"]["few"]) / (whole - few))


def ratio(ours: list[float], theirs: list[float]) -> str:
    ratios = sorted(own / other for own, other in zip(ours, theirs, strict=True))
    return f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"


if __name__ == "__main__":
    if sys.argv[1] == "measure":
        measure(sys.argv[2], Path(sys.argv[3]), *map(int, sys.argv[4:]))
    else:
        report(Path(sys.argv[2]))
