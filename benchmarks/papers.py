"""Runs the studies of recipes/papers/, and makes the page docs/papers.md from their results.

    POLYTASK_DATA=DIR python benchmarks/papers.py run OUT [--only STUDY ...] [--set FIELD=VALUE ...] [--rate FACTOR]
        [--seeds N ...] [--workers N] [--seconds N] [--studies DIR]
    POLYTASK_DATA=DIR python benchmarks/papers.py run OUT --schedule benchmarks/papers-minilm.yaml [--only STUDY ...]
        [--set FIELD=VALUE ...] [--workers N] [--seconds N] [--studies DIR]
    python benchmarks/papers.py cells STUDIES ARCHIVE [--packed FILE]
    python benchmarks/papers.py tables STUDY.json ...
    python benchmarks/papers.py pack OUT ... > benchmarks/papers-DATE.json
    python benchmarks/papers.py page [--out DIR]

run     runs `polytask compare` for each study (all, or those whose name contains a word of --only), and writes its
        study.json to OUT/NAME.json as soon as it has ended. After --seconds the running study is stopped, its page
        is written, and the others are left out. --set and --seeds replace fields and seeds of every study, for
        example for a shorter schedule. --rate multiplies the learning rate of every row by a factor: `optimizer.lr`,
        and `train.head_lr` in rows that set it, so that the ratio of heads and encoder stays; also in rows with a
        frozen encoder. Cells are kept in --studies, so that the same command continues; use another folder for other
        changes. OUT/NAME.json also has what `polytask compare` does not write: the changes, the scores on training
        rows (of rows with `train.evaluate_train`), and the comparisons that claims need and that are not with the
        study's reference. For those, Holm's correction is over the comparisons with the same reference.
        pal-samplers-mlm needs runs/mlm/model (see its header); its finished runs without masked-language-model
        training are then trained further, one after another, for the variant "MLM after".
        With --schedule, the changes and seeds of each study are those of the file, studies share the runs that are the
        same, and all workers are busy until the last run. After --seconds, the runs that have not ended are left out;
        with --seconds 0, only the results of finished runs are written.
cells   packs the finished runs of a schedule (the folder --studies) for another machine, without models and texts.
        There, `tar -xf ARCHIVE -C STUDIES` and `run --schedule --seconds 0` with the same code, data and settings write
        the results. --packed names a file with the cells of earlier archives, which are left out.
tables  prints a Markdown table of each study: published scores, ours with their intervals, and the verdict of every
        comparison with the study's reference.
pack    prints what the page needs of the results (files, or all files of a folder), and nothing else: scores,
        comparisons, changes, environment.
page    writes docs/papers.md and its plots from benchmarks/papers-*.json, claims.yaml and published.yaml. Of several
        results of one study, the last one that has the rows of a claim decides its verdict.
"""

import argparse
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from papers_cells import pack_cells
from papers_claims import ADDED, MEAN, needed_measures, needed_pairs, read_systems
from papers_page import write_page
from papers_results import FORGOTTEN, GAP, PERPLEXITY, SPREAD, pack, published_scores, read_results, table
from papers_schedule import Changes, Planned, changes_of, write_changed

from polytask.studies.cells import summary_of
from polytask.studies.results import FinishedRun, comparisons_json, verdict_of

ROOT = Path(__file__).parent.parent
PAPERS = ROOT / "recipes" / "papers"
AFTER = "after"
"""The folder of runs that start from a study's runs, inside the study's folder."""
GRACE = 60
"""Seconds that a study that was stopped may take for its page."""


# --- run --------------------------------------------------------------------------------------------------------------
def run(options: argparse.Namespace) -> None:
    ends = time.monotonic() + options.seconds
    options.out.mkdir(parents=True, exist_ok=True)
    for path in studies(options.only):
        left = ends - time.monotonic()
        if left <= 0:
            print(f"{path.parent.name}/{path.stem}: not started, no time left", flush=True)
            continue
        changes = Changes(options.set, options.rate, options.seeds)
        with tempfile.TemporaryDirectory() as scratch:
            file = Path(scratch) / "study.yaml"
            name = write_changed(path, changes, file)
            folder, log = options.studies / name, options.out / f"{name}.log"
            seconds = compare(file, folder, options.workers, left, log)
        if (folder / "study.json").is_file():
            if name in ADDED:
                seconds += train_further(folder, further_arguments(options.set), left - seconds, log)
            write_result(folder, options.out, changes_of(path, changes))
        else:
            print(f"{name}: no result, see {log}", flush=True)
        print(f"{name}: {seconds:.0f} s", flush=True)


def write_result(folder: Path, out: Path, changes: Mapping[str, Any]) -> None:
    """Copy the result of a study and add the details, which take up to a minute."""
    target = out / f"{folder.name}.json"
    shutil.copy(folder / "study.json", target)
    result = with_details(folder, changes)
    target.write_text(json.dumps(result, indent=1, ensure_ascii=False), encoding="utf-8")


def run_schedule(options: argparse.Namespace) -> None:
    """The studies of a schedule, with one pool of workers for the runs of all of them."""
    options.out.mkdir(parents=True, exist_ok=True)
    planned = Planned.read(options.schedule, options.studies, options.only, options.set)
    if options.seconds > 0:
        for line in planned.train(options.workers, options.seconds):
            print(line, flush=True)
        # Results take up to a minute each: a process for each study writes them.
        command = [sys.executable, *sys.argv, "--seconds", "0", "--only"]
        writing = [subprocess.Popen([*command, f"{path.parent.name}/{path.stem}"]) for path in planned.running]
        for process in writing:
            process.wait()
    else:
        for path, changes, folder in planned.finish():
            write_result(folder, options.out, changes_of(path, changes))
            print(f"{folder.name}: written", flush=True)


def studies(only: Sequence[str]) -> list[Path]:
    """The study files, in the order of `only` if it is given."""
    found = sorted(PAPERS.glob("*/study-*.yaml"))
    if not only:
        return found
    return [path for word in only for path in found if word in f"{path.parent.name}/{path.stem}"]


def compare(file: Path, folder: Path, workers: int, seconds: float, log: Path) -> float:
    """Run a study for at most so long; returns how long it took."""
    return polytask(["compare", str(file), "--study", str(folder), "--workers", str(workers)], seconds, log)


def polytask(arguments: Sequence[str], seconds: float, log: Path) -> float:
    """Run a command for at most so long; returns how long it took."""
    started = time.monotonic()
    command = [sys.executable, "-P", "-m", "polytask", *arguments]
    with log.open("a", encoding="utf-8") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=os.environ)
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(GRACE)
            except subprocess.TimeoutExpired:
                process.kill()
    return time.monotonic() - started


def train_further(folder: Path, arguments: Sequence[str], seconds: float, log: Path) -> float:
    """Train the finished runs of a study's reference further on plain text, each into folder/after/SEED."""
    study = json.loads((folder / "study.json").read_text(encoding="utf-8"))
    taken = 0.0
    for cell in study["variants"][study["reference"]]["cells"]:
        target = folder / AFTER / str(cell["seed"])
        if cell["state"] == "done" and summary_of(target) is None and taken < seconds:
            seed = ["--set", f"seed={cell['seed']}"]
            places = ["--start", str(folder / cell["run"]), "--run", str(target), *["--resume"] * target.exists()]
            taken += polytask(["pretrain", *arguments, *seed, *places], seconds - taken, log)
    return taken


def further_arguments(settings: Sequence[str]) -> list[str]:
    """The recipe, settings and texts of pal-samplers-mlm-after.yaml, whose header has the whole command."""
    data = os.environ.get("POLYTASK_DATA", "")
    files = ("cs224n/ids-sst-train.csv:sentence", "quora-train.tsv:sentence1", "cs224n/sts-train.csv:sentence1")
    changes = ["train.precision=auto", *settings, "train.epochs=1", "optimizer.lr=5e-5"]
    return [
        str(PAPERS / "pal-samplers" / "pal-samplers-mlm-after.yaml"),
        *(word for change in changes for word in ("--set", change)),
        *(word for file in files for word in ("--text", f"{data}/{file}")),
    ]


# --- what study.json lacks --------------------------------------------------------------------------------------------
def with_details(folder: Path, changes: Mapping[str, Any]) -> dict[str, Any]:
    """The content of a study.json with the changes, the scores on training rows and the comparisons for claims."""
    study: dict[str, Any] = json.loads((folder / "study.json").read_text(encoding="utf-8"))
    runs = [
        FinishedRun(variant, cell["seed"], folder / cell["run"], summary)
        for variant, record in study["variants"].items()
        for cell in record["cells"]
        if (summary := summary_of(folder / cell["run"])) is not None
    ]
    runs += runs_after(folder, study["name"])
    systems = read_systems()
    pairs = compare_pairs(study, runs, needed_pairs(systems, study["name"], study["reference"]))
    wanted = needed_measures(systems, study["name"])
    measured = {of: measured_scores(runs, of, tasks) for of, tasks in wanted.items()}
    return {**study, "changes": dict(changes), "training": training_scores(runs), "measured": measured, "pairs": pairs}


def runs_after(folder: Path, study: str) -> list[FinishedRun]:
    """The runs that `train_further` has finished."""
    found = [(path, summary_of(path)) for path in sorted((folder / AFTER).glob("*"))]
    return [
        FinishedRun(variant, int(path.name), path, summary)
        for variant in ADDED.get(study, ())
        for path, summary in found
        if summary is not None
    ]


def training_scores(runs: Sequence[FinishedRun]) -> dict[str, dict[str, dict[str, float]]]:
    """By variant, task and seed: the score on training rows."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for run in runs:
        for task, score in run.summary["training_rows"].items():
            value = score["metrics"][score["primary"]]["value"]
            found.setdefault(run.variant, {}).setdefault(task, {})[str(run.seed)] = value
    return found


def measured_scores(
    runs: Sequence[FinishedRun], of: str, tasks: Sequence[str]
) -> dict[str, dict[str, dict[str, float]]]:
    """By variant, task and seed: another number than the score, of these tasks (`mean`: of all trained tasks)."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for run in runs:
        trained = [task for task, about in run.summary["tasks"].items() if about["trained"]]
        for task in tasks:
            values = [measured(run.summary, of, one) for one in (trained if task == MEAN else [task])]
            found.setdefault(run.variant, {}).setdefault(task, {})[str(run.seed)] = fmean(values)
    return found


def measured(summary: Mapping[str, Any], of: str, task: str) -> float:
    """One number of a run on dev; GAP: its score on training rows minus that on dev."""
    if of == FORGOTTEN:
        forgotten: float = summary["transfer"]["forgetting"][task]
        return forgotten
    dev = summary["evaluations"]["dev"][task]
    metric = dev["primary"] if of in (GAP, SPREAD) else of
    value: float = dev["metrics"][metric]["value"]
    if of != GAP:
        return math.log(value) if metric == PERPLEXITY else value
    training: float = summary["training_rows"][task]["metrics"][metric]["value"]
    return training - value


def compare_pairs(
    study: Mapping[str, Any], runs: Sequence[FinishedRun], pairs: Mapping[str, Sequence[str]]
) -> list[dict[str, Any]]:
    """Comparisons with other references than the study's; `pairs` names the variants to compare with each."""
    found = []
    for reference, variants in pairs.items():
        chosen = [run for run in runs if run.variant in (reference, *variants)]
        finished = {run.variant for run in chosen}
        if reference in finished and len(finished) > 1:
            found += comparisons_json(verdict_of(chosen, reference, study["margin"] / 100, tasks=study["tasks"]))
    return found


# --- tables, pack -----------------------------------------------------------------------------------------------------
def print_tables(files: Sequence[Path]) -> None:
    published = published_scores()
    on_training_rows = [study for system in read_systems().values() for study in system.on_training_rows]
    for result in pack(files):
        print(f"### {result['name']}", end="\n\n")
        print(f"Seeds {', '.join(map(str, result['seeds']))}; reference: {result['reference']}.", end="\n\n")
        print(table(result, published.get(result["name"], {}), result["name"] in on_training_rows), end="\n\n")


def print_packed(files: Sequence[Path]) -> None:
    """One line for each result, so that a diff shows which one changed."""
    lines = [json.dumps(result, ensure_ascii=False) for result in pack(files)]
    print("[\n" + ",\n".join(lines) + "\n]")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run")
    running.add_argument("out", type=Path)
    running.add_argument("--only", nargs="*", default=[])
    running.add_argument("--set", action="append", default=[])
    running.add_argument("--rate", type=float, default=1)
    running.add_argument("--seeds", nargs="*", type=int, default=[])
    running.add_argument("--workers", type=int, default=12)
    running.add_argument("--seconds", type=float, default=1e9)
    running.add_argument("--studies", type=Path, default=Path("studies"))
    running.add_argument("--schedule", type=Path)
    packing = commands.add_parser("cells")
    packing.add_argument("studies", type=Path)
    packing.add_argument("archive", type=Path)
    packing.add_argument("--packed", type=Path)
    commands.add_parser("tables").add_argument("files", nargs="+", type=Path)
    commands.add_parser("pack").add_argument("files", nargs="+", type=Path)
    commands.add_parser("page").add_argument("--out", type=Path, default=ROOT / "docs")
    options = parser.parse_args()
    if options.command == "run":
        run_schedule(options) if options.schedule else run(options)
    elif options.command == "cells":
        print(f"{pack_cells(options.studies, options.archive, options.packed)} runs in {options.archive}")
    elif options.command == "tables":
        print_tables(options.files)
    elif options.command == "pack":
        print_packed(options.files)
    else:
        write_page(read_results(), options.out)


if __name__ == "__main__":
    main()
