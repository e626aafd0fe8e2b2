"""Runs per minute of a study: `polytask compare` with kept workers beside one `polytask train` process per run.

    python benchmarks/studies.py --data DIR [--encoder NAME_OR_DIR] [--workers 12] [--runs 100] [--separate-runs 24]
        [--recipe recipes/three-tasks.yaml] [--set FIELD=VALUE ...] [--seconds N] [--out FILE.jsonl] [--keep DIR]

Every run is one epoch of the recipe; the runs differ in learning rate and seed. The data is tokenized before anything
is measured, so both ways start with a warm token cache. `compare` is timed as a whole, from the command to the page.
The separate runs are started as a shell script would, `--workers` at a time; as many as `--separate-runs`, because they
take longer. After `--seconds` a way is stopped and reports what it has finished.

Every result is a line of JSON, written to `--out` at once: one per run, then one per way.
`overhead_seconds` of a way is the time of a run in its process minus the time in which the run trained and evaluated.
"""

import argparse
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

RECIPE = Path(__file__).parent.parent / "recipes" / "three-tasks.yaml"
POLYTASK = [sys.executable, "-P", "-m", "polytask"]
RATES = (5e-5, 1e-4, 1.5e-4, 2e-4)
PREPARE = "import sys, polytask; polytask.prepare(polytask.read_recipe(sys.argv[1], sys.argv[2:]))"


class Results:
    """Writes each result at once."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.cpu_before = 0.0

    def cpu_seconds(self) -> float:
        """The processor time of the processes that have ended since the last call."""
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        before, self.cpu_before = self.cpu_before, used.ru_utime + used.ru_stime
        return self.cpu_before - before

    def write(self, **content: Any) -> None:
        line = json.dumps(content)
        print(line, flush=True)
        if self.path is not None:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(line + "\n")


def study_of(options: argparse.Namespace) -> dict[str, Any]:
    """A study of `--runs` runs; JSON is YAML."""
    rates = RATES if options.runs % len(RATES) == 0 else RATES[:1]
    fields = dict(setting.split("=", 1) for setting in settings_of(options))
    return {
        "name": "throughput",
        "base": str(options.recipe.resolve()),
        "set": {field: _value(text) for field, text in fields.items()},
        "seeds": list(range(options.runs // len(rates))),
        "variants": {f"lr {rate:g}": {"optimizer.lr": rate} for rate in rates},
    }


def settings_of(options: argparse.Namespace) -> list[str]:
    given = [f"data={options.data.resolve()}"] if options.data else []
    given += [f"encoder={options.encoder}"] if options.encoder else []
    return [*given, "train.epochs=1", *options.set]


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def compare(options: argparse.Namespace, folder: Path, results: Results) -> None:
    """The whole study in one command."""
    (folder / "study.yaml").write_text(json.dumps(study_of(options)))
    command = [*POLYTASK, "compare", str(folder / "study.yaml"), "--study", str(folder / "study")]
    started = time.monotonic()
    process = subprocess.Popen(
        [*command, "--workers", str(options.workers)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    timer = threading.Timer(options.seconds or 1e6, process.send_signal, [signal.SIGTERM])
    timer.start()
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(("done ", "FAILED ")):
            results.write(way="compare", run=line.strip(), seconds=round(time.monotonic() - started, 2))
    process.wait()
    timer.cancel()
    seconds = time.monotonic() - started
    study = json.loads((folder / "study" / "study.json").read_text())
    runs = sorted(folder.glob("study/cells/*/summary.json"))
    measured = study["throughput"][0] if study["throughput"] else None
    report(results, "compare", options, runs, seconds, exit_code=process.returncode, without_start_and_page=measured)


def separate(options: argparse.Namespace, folder: Path, results: Results) -> None:
    """A process for each run, `--workers` at a time."""
    started = time.monotonic()
    # As many threads each as a study gives its workers.
    threads = str(max(1, (os.cpu_count() or 1) // options.workers))
    environment = {"OMP_NUM_THREADS": threads, **os.environ}
    waiting = [separate_command(options, folder, number) for number in range(options.separate_runs)]
    running: dict[subprocess.Popen[bytes], float] = {}
    while (waiting and not _over(options, started)) or running:
        while waiting and len(running) < options.workers and not _over(options, started):
            process = subprocess.Popen(waiting.pop(0), stdout=subprocess.DEVNULL, env=environment)
            running[process] = time.monotonic()
        time.sleep(0.05)
        for process in [process for process in running if process.poll() is not None]:
            took = time.monotonic() - running.pop(process)
            now = round(time.monotonic() - started, 2)
            results.write(way="separate", exit_code=process.returncode, run_seconds=round(took, 2), seconds=now)
    runs = sorted(folder.glob("separate/*/summary.json"))
    report(results, "separate", options, runs, time.monotonic() - started)


def separate_command(options: argparse.Namespace, folder: Path, number: int) -> list[str]:
    settings = [*settings_of(options), f"seed={number}"]
    words = [word for setting in settings for word in ("--set", setting)]
    return [*POLYTASK, "train", str(options.recipe), "--run", str(folder / "separate" / str(number)), *words]


def _over(options: argparse.Namespace, started: float) -> bool:
    return bool(options.seconds) and time.monotonic() - started > options.seconds


def report(
    results: Results, way: str, options: argparse.Namespace, runs: list[Path], seconds: float, **more: Any
) -> None:
    """The line of a way. With fewer runs than workers, only so many ran at a time."""
    summaries = [json.loads(path.read_text()) for path in runs]
    trained = median(s["seconds"] for s in summaries) if summaries else None
    at_a_time = min(options.workers, options.runs if way == "compare" else options.separate_runs)
    results.write(
        way=way,
        workers=options.workers,
        runs=len(runs),
        seconds=round(seconds, 2),
        runs_per_minute=round(60 * len(runs) / seconds, 3),
        train_seconds=trained,
        overhead_seconds=round(seconds * at_a_time / len(runs) - trained, 2) if trained is not None else None,
        examples_per_second=median(s["examples_per_second"] for s in summaries) if summaries else None,
        cpu_seconds=round(results.cpu_seconds(), 2),
        **more,
    )


def folders(options: argparse.Namespace) -> Iterator[Path]:
    if options.keep:
        options.keep.mkdir(parents=True, exist_ok=True)
        yield options.keep.resolve()
    else:
        with tempfile.TemporaryDirectory() as folder:
            yield Path(folder)


def main() -> None:
    given = argparse.ArgumentParser()
    given.add_argument("--recipe", type=Path, default=RECIPE)
    given.add_argument("--data", type=Path)
    given.add_argument("--encoder")
    given.add_argument("--workers", type=int, default=12)
    given.add_argument("--runs", type=int, default=100)
    given.add_argument("--separate-runs", type=int, default=24)
    given.add_argument("--set", action="append", default=[])
    given.add_argument("--seconds", type=float)
    given.add_argument("--out", type=Path)
    given.add_argument("--keep", type=Path)
    options = given.parse_args()
    results = Results(options.out)
    started = time.monotonic()
    subprocess.run([sys.executable, "-P", "-c", PREPARE, str(options.recipe), *settings_of(options)], check=True)
    seconds, cpu = round(time.monotonic() - started, 2), round(results.cpu_seconds(), 2)
    results.write(way="tokenize", seconds=seconds, cpu_seconds=cpu, cores=os.cpu_count())
    for folder in folders(options):
        if options.separate_runs:
            separate(options, folder, results)
        if options.runs:
            compare(options, folder, results)


if __name__ == "__main__":
    main()
