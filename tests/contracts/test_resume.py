"""Every entry of every table: a run that was stopped ends with the bits, lines and examples of one that was not.

The comparison itself is tested too: it must notice whatever a restore forgets.
"""

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from polytask import TABLES, Running, seeds, start_training
from polytask.recipe.records import Recipe
from polytask.regularizers.bregman import Bregman
from polytask.samplers.base import StepSampler
from polytask.training import checkpoint as ckpt
from polytask.training.averages import RunningAverage
from polytask.training.feed import Feed
from polytask.training.memory import Memory
from polytask.types import Draw

from .conftest import IN_ORDER, NEEDS, SMALL, TASKS, MakeRecipe

STEPS, STOP = 6, 3
"""Saved every second step, stopped after the third, resumed from the second."""
TRAIN = [
    "train.epochs=2",
    f"train.steps_per_epoch={STEPS // 2}",
    "train.save_every=2",
    "train.ema=0.9",
    "train.average_best=2",
]
FILES = "train: data.csv, dev: data.csv"
OTHER_TASKS = {
    "text": f"tasks.other={{kind: text, text: a, {FILES}}}",
}
"""Tasks of kinds that the usual recipe does not have."""
ENTRIES = [(table, name) for table, methods in TABLES.items() for name in methods]
QUICK = {
    "adapter": ("none", "pal", "stack"),
    "head": ("linear", "match", "mlm"),
    "optimizer": ("adamw", "lamb", "qhadam"),
    "sampler": ("annealed", "mixed", "round_robin", "in_order"),
    "policy": ("sum", "dwa", "gem", "pcgrad", "uncertainty"),
}
"""Of these tables only some entries are tried by default: the others are restored in the same way."""


def fitting_task(table: str, name: str) -> str:
    """A task for a head or a loss."""
    method: Any = TABLES[table][name]
    if method.kinds[0] in OTHER_TASKS:
        return "other"
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
            kind = TABLES[table][name].kinds[0]
            return [*([OTHER_TASKS[kind]] if task == "other" else []), f"tasks.{task}.head={name}"]
        case "loss":
            return [f"tasks.{fitting_task(table, name)}.loss={name}"]
        case "regularizer":
            return [*NEEDS.get(name, []), f"regularizers=[{name}]"]
        case "sampler" if name == "in_order":
            return IN_ORDER
        case _:
            return [f"{table}={name}"]


def stopped(made: Recipe, run: Path, before_resuming: Callable[[], None] = lambda: None) -> dict[str, Any]:
    """How a run ends that is stopped and resumed."""
    running = start_training(made, run)
    order = note_order(running)
    list(itertools.islice(running.steps(), STOP))
    before_resuming()
    resumed = start_training(made, run, resume=True)
    first = resumed.session.step
    assert 0 < first < STOP
    order = {step: drawn for step, drawn in order.items() if step <= first}
    later = note_order(resumed)
    list(resumed.steps())
    return ending(run, order | later)


def straight(made: Recipe, run: Path) -> dict[str, Any]:
    """How a run ends that is not stopped."""
    running = start_training(made, run)
    order = note_order(running)
    list(running.steps())
    return ending(run, order)


def ending(run: Path, order: dict[int, list[Any]]) -> dict[str, Any]:
    """Everything a run ends with, except times."""
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


def note_order(running: Running) -> dict[int, list[Any]]:
    """Fills, while the run trains, a table of the examples that each step is given, in their order."""
    order: dict[int, list[Any]] = {}
    feed = running.session.feed
    real = feed.next_indices

    def next_indices(draw: Draw) -> list[int]:
        indices = real(draw)
        order.setdefault(running.session.step, []).append((draw.task, indices))
        return indices

    feed.next_indices = next_indices  # type: ignore[method-assign]
    return order


def check_same(resumed: dict[str, Any], expected: dict[str, Any]) -> None:
    different = [key for key in expected if resumed[key] != expected[key]]
    assert not different, f"not the same after resuming: {different}"


@pytest.mark.parametrize(
    ("table", "name"),
    [
        pytest.param(table, name, marks=() if name in QUICK.get(table, (name,)) else pytest.mark.slow)
        for table, name in ENTRIES
    ],
    ids=lambda value: value,
)
def test_a_resumed_run_ends_bit_identical(table: str, name: str, make_recipe: MakeRecipe, tmp_path: Path) -> None:
    made = make_recipe(*TRAIN, *settings(table, name))
    expected = straight(made, tmp_path / "straight")
    assert [line["step"] for line in expected["lines"] if line["kind"] == "step"] == list(range(1, STEPS + 1))
    assert set(expected["order"]) == set(range(1, STEPS + 1))
    check_same(stopped(made, tmp_path / "stopped"), expected)


# --- restores that forget something -----------------------------------------------------------------------------------
FORGETS: dict[str, tuple[Any, str]] = {
    "optimizer": (ckpt, "load_optimizer_tensors"),
    "position of the sampler": (StepSampler, "load_state_dict"),
    "position in the examples": (Feed, "load_state_dict"),
    "memories": (Memory, "load_state_dict"),
    "average of the weights": (RunningAverage, "load"),
    "state of a regularizer": (Bregman, "load_state_dict"),
    "seed of a step": (seeds, "seed_torch"),
}


@pytest.fixture(scope="module")
def with_everything(make_recipe: MakeRecipe, tmp_path_factory: pytest.TempPathFactory) -> tuple[Recipe, dict[str, Any]]:
    """A recipe whose runs restore all of these, and how a run of it ends; nothing differs if nothing is forgotten."""
    methods = ["policy={name: replay, size: 5}", "regularizers=[bregman]", "sampler=proportional"]
    made = make_recipe(*TRAIN, *methods, "train.accumulate=2")
    folder = tmp_path_factory.mktemp("everything")
    expected = straight(made, folder / "straight")
    check_same(stopped(made, folder / "stopped"), expected)
    return made, expected


@pytest.mark.parametrize("what", FORGETS)
def test_a_restore_that_forgets_something_is_noticed(
    what: str, with_everything: tuple[Recipe, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, expected = with_everything

    def forget() -> None:
        monkeypatch.setattr(*FORGETS[what], lambda *_, **__: None)

    with pytest.raises(AssertionError, match="not the same after resuming"):
        check_same(stopped(made, tmp_path / "run", forget), expected)
