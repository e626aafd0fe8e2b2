"""Every entry of every table: a run that was stopped twice ends with the bits, lines and examples of one that was not.

The comparison itself is tested too: whatever a restore forgets, it must see.
"""

import itertools
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from polytask import TABLES, Running, recipe_from, start_training
from polytask.recipe.records import Recipe
from polytask.regularizers.bregman import Bregman
from polytask.samplers.base import StepSampler
from polytask.training import checkpoint as ckpt
from polytask.training import loop
from polytask.training.averages import RunningAverage
from polytask.training.feed import Feed
from polytask.training.memory import Memory
from polytask.types import Draw

STEPS, STOPS = 6, (3, 5)
"""Saved every second step, stopped after the third, gone on from the second; stopped after the fifth, and so on."""
TASKS = {
    "one": {"kind": "classes", "text": "a", "label": "mood"},
    "two": {"kind": "yes_no", "text": ["a", "b"], "label": "same"},
    "three": {"kind": "score", "range": [0, 5], "text": ["a", "b"], "label": "score", "head": "bi"},
}
BASE = {
    "encoder": {"layers": 2, "hidden": 16, "heads": 2, "ffn": 32, "positions": 32},
    "max_length": 16,
    "sampler": "mixed",
    "optimizer": {"name": "adamw", "lr": 1e-3},
    "train": {
        "epochs": 3,
        "steps_per_epoch": STEPS // 3,
        "batch_size": 6,
        "accumulate": 2,
        "save_every": 2,
        "evaluate_every": 3,
        "ema": 0.9,
        "average_best": 2,
    },
}
SMALL = {
    "pal": "{name: pal, size: 6, heads: 2}",
    "houlsby": "{name: houlsby, size: 4}",
    "low_rank": "{name: low_rank, size: 4}",
    "lora": "{name: lora, rank: 2}",
    "stack": "{name: stack, adapters: [{name: pal, size: 6, heads: 2}, conditional_norm]}",
}
PLAIN = "tasks.words={kind: text, text: a, train: data.csv, dev: data.csv}"
NEEDS = {
    "soft_sharing": ["adapter=own_encoder"],
    "ewc": ["sampler=in_order"],
    "lwf": ["sampler=in_order"],
}
ENTRIES = [(table, name) for table, methods in TABLES.items() for name in methods]


def fitting_task(table: str, name: str) -> str:
    """A task for a head or a loss."""
    method: Any = TABLES[table][name]
    if "text" in method.kinds:
        return "words"
    fits = [task for task, about in TASKS.items() if about["kind"] in method.kinds]
    if table == "head":
        fits = [task for task in fits if (2 if isinstance(TASKS[task]["text"], list) else 1) in method.texts]
    return fits[0]


def settings(table: str, name: str) -> list[str]:
    """What makes the recipe one with this method."""
    match table:
        case "adapter":
            return [f"adapter={SMALL.get(name, name)}"]
        case "head":
            task = fitting_task(table, name)
            return [*([PLAIN] if task == "words" else []), f"tasks.{task}.head={name}"]
        case "loss":
            return [f"tasks.{fitting_task(table, name)}.loss={name}"]
        case "regularizer":
            return [*NEEDS.get(name, []), f"regularizers=[{name}]"]
        case _:
            return [f"{table}={name}"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    words = ["the", "book", "was", "good", "bad", "long", "dull", "funny", "and", "I", "liked", "it", "not", "much"]
    rows = [
        (" ".join(words[n % 7 : n % 7 + 4]), " ".join(words[n % 5 : n % 5 + 5]), n % 3, ("no", "yes")[n % 2], n % 6)
        for n in range(30)
    ]
    lines = [f"{a},{b},{('sad', 'calm', 'glad')[mood]},{same},{score}" for a, b, mood, same, score in rows]
    (folder / "data.csv").write_text("a,b,mood,same,score\n" + "\n".join(lines) + "\n")
    return folder


def recipe(data: Path, *more: str) -> Recipe:
    tasks = {name: {**task, "train": "data.csv", "dev": "data.csv"} for name, task in TASKS.items()}
    return recipe_from({**BASE, "tasks": tasks}, more, folder=data)


def ending(made: Recipe, run: Path, stops: tuple[int, ...] = ()) -> dict[str, Any]:
    """Everything a run ends with, times aside, when it is stopped after these steps and resumed."""
    order: dict[int, list[Any]] = {}
    for stop in (*stops, STEPS):
        running = start_training(made, run, resume=run.exists())
        first = running.session.step
        order = {step: drawn for step, drawn in order.items() if step <= first}
        note_order(running, order)
        list(itertools.islice(running.steps(), stop - first))
    last = run / "checkpoints" / f"step-{STEPS}"
    state = json.loads((last / "state.json").read_text())
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return {
        **{file.name: file.read_bytes() for file in last.glob("*.safetensors")},
        "best": [(run / f"checkpoints/best-{step}/model.safetensors").read_bytes() for _, step in state["bests"]],
        "state": {key: value for key, value in state.items() if "seconds" not in key},
        "lines": [{key: value for key, value in line.items() if key != "seconds"} for line in lines],
        "order": order,
    }


def note_order(running: Running, order: dict[int, list[Any]]) -> None:
    """Which examples each step is given, and in which order."""
    feed = running.session.feed
    real = feed.next_indices

    def next_indices(draw: Draw) -> list[int]:
        found = real(draw)
        order.setdefault(running.session.step, []).append((draw.task, found))
        return found

    feed.next_indices = next_indices  # type: ignore[method-assign]


def check_resumes(made: Recipe, folder: Path) -> None:
    straight = ending(made, folder / "straight")
    assert [line["step"] for line in straight["lines"] if line["kind"] == "step"] == list(range(1, STEPS + 1))
    assert set(straight["order"]) == set(range(1, STEPS + 1))
    check_same(ending(made, folder / "stopped", STOPS), straight)


def check_same(resumed: dict[str, Any], straight: dict[str, Any]) -> None:
    different = [key for key in straight if resumed[key] != straight[key]]
    assert not different, f"not the same after resuming: {different}"


@pytest.mark.parametrize(("table", "name"), ENTRIES, ids=lambda value: value)
def test_stopped_and_resumed_is_bit_identical(table: str, name: str, data: Path, tmp_path: Path) -> None:
    check_resumes(recipe(data, *settings(table, name)), tmp_path)


# --- restores that forget something -----------------------------------------------------------------------------------
def nothing(*_: Any, **__: Any) -> None:
    pass


FORGETS: dict[str, tuple[Any, str, Any]] = {
    "optimizer": (ckpt, "load_optimizer_tensors", nothing),
    "position of the sampler": (StepSampler, "load_state_dict", nothing),
    "position in the examples": (Feed, "load_state_dict", nothing),
    "memories": (Memory, "load_state_dict", nothing),
    "average of the weights": (RunningAverage, "load", nothing),
    "what a regularizer keeps": (Bregman, "load_state_dict", nothing),
    "random state": (loop, "torch", SimpleNamespace(manual_seed=nothing)),
}


@pytest.fixture(scope="module")
def with_everything(data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Recipe, dict[str, Any]]:
    """A recipe whose runs have all of these to restore, and how it ends; so it does when nothing is forgotten."""
    made = recipe(data, "policy={name: replay, size: 5}", "regularizers=[bregman]", "sampler=proportional")
    folder = tmp_path_factory.mktemp("everything")
    straight = ending(made, folder / "straight")
    check_same(ending(made, folder / "stopped", STOPS[:1]), straight)
    return made, straight


@pytest.mark.parametrize("what", FORGETS)
def test_a_restore_that_forgets_something_is_seen(
    what: str, with_everything: tuple[Recipe, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, straight = with_everything
    list(itertools.islice(start_training(made, tmp_path / "run").steps(), STOPS[0]))
    monkeypatch.setattr(*FORGETS[what])
    with pytest.raises(AssertionError, match="not the same after resuming"):
        check_same(ending(made, tmp_path / "run"), straight)
