"""On a GPU, runs with the same seed are bit-identical, and so is a run that was stopped and resumed.

A resumed run runs its first step of each shape kernel by kernel and captures the second, where the run that was not
stopped replays graphs; so both ways must give the same bits. On the CPU, tests/contracts/test_resume.py compares runs.
"""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from polytask import Running, read_recipe, seeds, start_training
from polytask.recipe.records import Recipe
from polytask.stream import Stream
from polytask.training.loop import Session
from polytask.training.step import half_precision, set_training_mode
from polytask.types import Draw

QUICKSTART = Path(__file__).parent.parent.parent / "recipes" / "quickstart.yaml"
STEPS, STOP = 24, 13
SETTINGS = [
    "encoder={layers: 2, hidden: 64, heads: 4, ffn: 128, positions: 128}",
    "max_length=20",
    "train.device=cuda",
    "train.precision=bf16",
    "train.epochs=1",
    f"train.steps_per_epoch={STEPS}",
    f"train.save_every={STOP}",
]
TEXTS = "{kind: text, text: text, train: 'sample:opinions-train', dev: 'sample:opinions-dev', head: mlm}"
CASES = {
    "plain": [],
    "pal": ["adapter={name: pal, size: 24, heads: 3}"],
    "smart": ["regularizers=[smart]"],
    "l2_sp": ["regularizers=[l2_sp]"],
    "ewc": ["sampler=in_order", "regularizers=[{name: ewc, samples: 10}]"],
    "averages": ["regularizers=[bregman]", "train.ema=0.99"],
    "gem": ["policy=gem"],
    "gem, all tasks in a step": ["policy=gem", "sampler=mixed"],
    "all tasks in a step": ["sampler=mixed"],
    "accumulated": ["train.accumulate=4"],
    "long sequences": ["adapter={name: prefix, length: 120}"],
    "masked words": [f"tasks.texts={TEXTS}"],
    "lamb": ["optimizer={name: lamb, lr: 1e-3}"],
    "not captured": ["train.capture=false", "sampler=mixed", "adapter={name: pal, size: 24, heads: 3}"],
}
on_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="bits of captured steps need a CUDA device")


def recipe_of(case: str) -> Recipe:
    return read_recipe(QUICKSTART, [*SETTINGS, *CASES[case]])


def trained(recipe: Recipe, folder: Path, *stops: int) -> Running:
    """Train, in one go or stopped after these steps and resumed; return the last part."""
    running = None
    for stop in (*stops, STEPS):
        running = start_training(recipe, folder, resume=folder.exists())
        steps = running.steps()
        list(itertools.islice(steps, stop - running.session.step))
        steps.close()  # type: ignore[attr-defined]
        assert running.session.step == stop
    assert running is not None
    return running


def ending(folder: Path) -> dict[str, Any]:
    """What a run ends with, without times."""
    last = folder / "checkpoints" / f"step-{STEPS}"
    state = json.loads((last / "state.json").read_text())
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {
        **{file.name: file.read_bytes() for file in last.glob("*.safetensors")},
        "state": {key: value for key, value in state.items() if "seconds" not in key},
        "journal": [{key: value for key, value in line.items() if key != "seconds"} for line in lines],
    }


def check_same(folder: Path, expected: Path) -> None:
    one, other = ending(folder), ending(expected)
    pairs = zip(one.pop("journal"), other.pop("journal"), strict=True)
    different = next(((found, wanted) for found, wanted in pairs if found != wanted), None)
    assert different is None, f"the journals differ first in {different}"
    assert [name for name in other if one[name] != other[name]] == []


def check_captured(running: Running, case: str) -> None:
    """Check that steps were replayed: otherwise the test would say nothing about graphs."""
    captured = running.session.captured
    if case == "not captured":
        assert captured is None
        return
    assert captured is not None
    assert captured.reason is None
    assert any(entry.graph is not None for entry in captured.graphs.entries.values())


def gradients(session: Session, stream: Stream) -> dict[str, torch.Tensor]:
    """The losses, the penalties and the gradient of each parameter, with the dropout of one seed."""
    model, objective = session.model, session.objective
    seeds.seed_torch(1, model.device)
    model.zero_grad()
    set_training_mode(model, session.settings)
    with half_precision(model, session.settings):
        forward = model.run(stream)
        losses = objective.task_losses(model, stream, forward.outputs, 0.0)
        penalties = objective.penalties(model, forward)
    values = {**losses, **penalties}
    torch.stack(list(values.values())).sum().backward()
    grads = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return {name: value.detach() for name, value in values.items()} | grads


@on_cuda
@pytest.mark.parametrize("static_shape", [False, True])
@pytest.mark.parametrize("case", ["plain", "pal", "smart", "long sequences", "masked words"])
def test_a_pass_gives_the_same_gradients_every_time(case: str, static_shape: bool, tmp_path: Path) -> None:
    """Says which parameter's gradient differs, where a test of whole runs only says which step."""
    session = start_training(recipe_of(case), tmp_path / "run").session
    draws = [Draw(task, 16) for task in session.model.tasks]
    batch = session.feed.next_batch(draws, static_shape=static_shape)
    stream = batch.together.to(session.model.device)
    first = gradients(session, stream)
    for _ in range(5):
        again = gradients(session, stream)
        assert [name for name in first if not torch.equal(first[name], again[name])] == []


@on_cuda
@pytest.mark.parametrize("case", CASES)
def test_the_same_seed_gives_the_same_bits(case: str, tmp_path: Path) -> None:
    recipe = recipe_of(case)
    for name in ("first", "second"):
        check_captured(trained(recipe, tmp_path / name), case)
    check_same(tmp_path / "second", tmp_path / "first")


@on_cuda
@pytest.mark.parametrize("case", CASES)
def test_a_resumed_run_ends_with_the_same_bits(case: str, tmp_path: Path) -> None:
    recipe = recipe_of(case)
    check_captured(trained(recipe, tmp_path / "straight"), case)
    check_captured(trained(recipe, tmp_path / "stopped", STOP), case)
    check_same(tmp_path / "stopped", tmp_path / "straight")


@on_cuda
@pytest.mark.parametrize("case", ["plain", "pal", "smart", "l2_sp", "ewc", "averages", "gem"])
def test_a_replay_gives_the_bits_of_its_kernels(case: str, tmp_path: Path) -> None:
    """A run whose steps are all launched kernel by kernel, on the same streams of static shape."""
    recipe = recipe_of(case)
    check_captured(trained(recipe, tmp_path / "captured"), case)
    running = start_training(recipe, tmp_path / "launched")
    assert running.session.captured is not None
    running.session.captured.graphs.reason = "for comparison"
    list(running.steps())
    running.session.writer.wait()
    check_same(tmp_path / "launched", tmp_path / "captured")


@on_cuda
def test_the_comparison_sees_another_seed(tmp_path: Path) -> None:
    trained(recipe_of("plain"), tmp_path / "one")
    trained(read_recipe(QUICKSTART, [*SETTINGS, "seed=6"]), tmp_path / "other")
    with pytest.raises(AssertionError):
        check_same(tmp_path / "other", tmp_path / "one")
