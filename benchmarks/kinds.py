"""Captured steps of every kind of task and every family of encoders on a GPU, beside steps launched one by one.

    python benchmarks/kinds.py OUT [--encoder minilm]

Trains the shipped recipe of each kind of task, and the quick start with an untrained encoder of each family, once with
captured steps and once without. Prints for each whether its steps were captured (or why not), the steps per second of
the second half of the run, their ratio, and the dev scores of both runs. Numbers are appended to OUT/kinds.jsonl.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch

from polytask import read_recipe, start_training

RECIPES = Path(__file__).parent.parent / "recipes"
SHIPPED = ("tickets", "repairs", "entities", "match", "choice", "answers", "partly-labelled", "long-documents")
FAMILIES = ("bert", "roberta", "distilbert", "electra", "mpnet", "modernbert")


def cases(encoder: str) -> dict[str, tuple[Path, list[str]]]:
    """The name of each case, its recipe and its changes."""
    found = {name: (RECIPES / f"{name}.yaml", [f"encoder={encoder}"]) for name in SHIPPED}
    untrained = "{kind: %s, layers: 6, hidden: 384, heads: 12, ffn: 1536}"
    for family in FAMILIES:
        found[f"quick start, {family}"] = RECIPES / "quickstart.yaml", [f"encoder={untrained % family}"]
    return found


def measure(path: Path, changes: list[str], capture: bool, run: Path) -> dict[str, Any]:
    """Train once; the rate is that of the second half of the steps, without evaluations."""
    settings = [*changes, f"train.capture={str(capture).lower()}", "train.device=cuda"]
    running = start_training(read_recipe(path, settings), run)
    seconds: list[float] = []
    last = time.perf_counter()
    for _ in running.steps():
        torch.cuda.synchronize()
        now = time.perf_counter()
        seconds.append(now - last)
        last = now
    half = sorted(seconds[len(seconds) // 2 :])
    captured = running.session.captured
    reason = "captured" if captured is not None and captured.reason is None else getattr(captured, "reason", "off")
    finished = running.finish()
    scores = {task: score.metrics[score.primary].value for task, score in finished.evaluations["dev"]}
    return {"steps": len(seconds), "state": reason, "rate": 1 / half[len(half) // 2], "scores": scores}


def shown(scores: dict[str, float]) -> str:
    return ", ".join(f"{task} {value:.3f}" for task, value in scores.items())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--encoder", default="minilm")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    print("| case | steps | state | steps/s, captured | one by one | ratio | dev, captured | one by one |")
    print("|---|---|---|---|---|---|---|---|", flush=True)
    for number, (name, (path, changes)) in enumerate(cases(options.encoder).items()):
        one, other = (measure(path, changes, on, options.out / f"runs/{number}-{on}") for on in (True, False))
        with (options.out / "kinds.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps({"case": name, "captured": one, "one by one": other}) + "\n")
        rates = one["rate"], other["rate"]
        print(
            f"| {name} | {one['steps']} | {one['state']} | {rates[0]:.0f} | {rates[1]:.0f} | "
            f"{rates[0] / rates[1]:.2f} | "
            f"{shown(one['scores'])} | {shown(other['scores'])} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
