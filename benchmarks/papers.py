"""Runs the studies of recipes/papers/ one after another, and shows their scores next to the published ones.

    POLYTASK_DATA=DIR python benchmarks/papers.py run OUT [--only STUDY ...] [--set FIELD=VALUE ...] [--seeds N ...]
        [--workers N] [--seconds N] [--studies DIR]
    python benchmarks/papers.py tables STUDY.json ...

run     runs `polytask compare` for each study (all, or those whose name contains a word of --only), and writes its
        study.json to OUT/NAME.json as soon as it has ended. After --seconds the running study is stopped, its page
        is written, and the others are left out. --set and --seeds replace fields and seeds of every study, for
        example for a shorter schedule. Cells are kept in --studies, so that the same command continues.
tables  prints a Markdown table of each study: published scores, ours with their intervals, and the verdict of every
        comparison with the study's reference.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

PAPERS = Path(__file__).parent.parent / "recipes" / "papers"
PUBLISHED = Path(__file__).parent / "published.yaml"
TASKS = ("sst", "quora", "sts")
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
        study = with_changes(path, options.set, options.seeds)
        folder = options.studies / study["name"]
        with tempfile.TemporaryDirectory() as scratch:
            file = Path(scratch) / "study.yaml"
            file.write_text(json.dumps(study), encoding="utf-8")  # JSON is YAML
            seconds = compare(file, folder, options.workers, left, options.out / f"{study['name']}.log")
        if (folder / "study.json").is_file():
            shutil.copy(folder / "study.json", options.out / f"{study['name']}.json")
        print(f"{study['name']}: {seconds:.0f} s", flush=True)


def studies(only: Sequence[str]) -> list[Path]:
    """The study files, in the order of `only` if it is given."""
    found = sorted(PAPERS.glob("*/study-*.yaml"))
    if not only:
        return found
    return [path for word in only for path in found if word in f"{path.parent.name}/{path.stem}"]


def with_changes(path: Path, settings: Sequence[str], seeds: Sequence[int]) -> dict[str, Any]:
    """The study with absolute paths, and with other settings and seeds."""
    study: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    changes = {field: yaml.safe_load(value) for field, _, value in (text.partition("=") for text in settings)}
    study["set"] = {**study.get("set", {}), **changes}
    study["seeds"] = list(seeds) or study["seeds"]
    study["variants"] = {name: absolute(variant, path.parent) for name, variant in study["variants"].items()}
    return study


def absolute(variant: str | dict[str, Any], folder: Path) -> str | dict[str, Any]:
    if isinstance(variant, str):
        return str((folder / variant).resolve())
    return {**variant, "recipe": str((folder / variant["recipe"]).resolve())}


def compare(file: Path, folder: Path, workers: int, seconds: float, log: Path) -> float:
    """Run a study for at most so long; returns how long it took."""
    started = time.monotonic()
    command = [sys.executable, "-P", "-m", "polytask", "compare", str(file), "--study", str(folder)]
    with log.open("a", encoding="utf-8") as output:
        process = subprocess.Popen([*command, "--workers", str(workers)], stdout=output, stderr=output, env=os.environ)
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(GRACE)
            except subprocess.TimeoutExpired:
                process.kill()
    return time.monotonic() - started


# --- tables -----------------------------------------------------------------------------------------------------------
def tables(files: Sequence[Path]) -> None:
    published = yaml.safe_load(PUBLISHED.read_text(encoding="utf-8"))
    for file in files:
        study = json.loads(file.read_text(encoding="utf-8"))
        print(table(study, published.get(study["name"], {})), end="\n\n")


def table(study: Mapping[str, Any], published: Mapping[str, Mapping[str, float]]) -> str:
    claims = {(c["variant"], c["task"]): c for c in study["comparisons"]}
    lines = [
        f"### {study['name']}",
        "",
        f"Seeds {', '.join(map(str, study['seeds']))}; reference: {study['reference']}.",
        "",
    ]
    lines += ["| row | " + " | ".join(f"{task} published | {task} ours" for task in TASKS) + " | runs |"]
    lines += ["|---" * (2 * len(TASKS) + 2) + "|"]
    for name, variant in study["variants"].items():
        cells = []
        for task in TASKS:
            cells.append(f"{published[name][task]:.3f}" if task in published.get(name, {}) else ABSENT)
            cells.append(score(variant["scores"].get(task), claims.get((name, task))))
        done = sum(cell["state"] == "done" for cell in variant["cells"])
        lines.append(f"| {name} | {' | '.join(cells)} | {done} of {len(variant['cells'])} |")
    return "\n".join(lines)


ABSENT = "\N{EN DASH}"
MARKS = {"better": " ▲", "worse": " ▼", "same": " =", "undecided": ""}


def score(value: Mapping[str, Any] | None, claim: Mapping[str, Any] | None) -> str:
    """A mean with its interval; ▲ and ▼ mark what is better or worse than the reference."""
    if value is None or value.get("mean") is None:
        return ABSENT
    mark = MARKS[claim["claim"]] if claim else ""
    return f"{value['mean']:.3f} [{value['low']:.3f}, {value['high']:.3f}]{mark}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run")
    running.add_argument("out", type=Path)
    running.add_argument("--only", nargs="*", default=[])
    running.add_argument("--set", action="append", default=[])
    running.add_argument("--seeds", nargs="*", type=int, default=[])
    running.add_argument("--workers", type=int, default=12)
    running.add_argument("--seconds", type=float, default=1e9)
    running.add_argument("--studies", type=Path, default=Path("studies"))
    commands.add_parser("tables").add_argument("files", nargs="+", type=Path)
    options = parser.parse_args()
    if options.command == "run":
        run(options)
    else:
        tables(options.files)


if __name__ == "__main__":
    main()
