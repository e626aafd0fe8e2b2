"""Every adapter of the table in whole runs: saved and loaded, with a trained and with a frozen encoder."""

from pathlib import Path
from typing import Any

import pytest
import torch

import polytask
from polytask import prepare, read_recipe, start_training
from polytask.adapters import ADAPTERS

QUICKSTART = Path(__file__).parent.parent.parent / "recipes" / "quickstart.yaml"
SMALL = {
    "pal": "{name: pal, size: 12, heads: 3}",
    "houlsby": "{name: houlsby, size: 4}",
    "low_rank": "{name: low_rank, size: 4}",
}
SMALL["stack"] = f"{{name: stack, adapters: [{SMALL['pal']}, conditional_norm]}}"


def settings(tiny: list[str], name: str, *more: str) -> list[str]:
    heads = ["tasks.question.head=bi", "tasks.similarity.head=cross"]
    fixed = ["train.epochs=1", "train.steps_per_epoch=6", "train.save_every=2"]
    return [*tiny, *heads, *fixed, f"adapter={SMALL.get(name, name)}", *more]


@pytest.mark.parametrize("name", ADAPTERS)
def test_a_finished_runs_model_loads(name: str, tmp_path: Path, tiny_settings: list[str]) -> None:
    running = start_training(read_recipe(QUICKSTART, settings(tiny_settings, name)), tmp_path / "run")
    list(running.steps())
    running.finish()
    model, trained = polytask.load(tmp_path / "run").bundle.model, running.prepared.model
    assert all(torch.equal(tensor, trained.state_dict()[name]) for name, tensor in model.state_dict().items())
    budget = model.budget()
    assert budget["adapter_shared"] == 0
    assert budget["encoder"] + sum(budget["per_task"].values()) == budget["total"]


@pytest.mark.parametrize("name", ADAPTERS)
@pytest.mark.parametrize("norms", [False, True])
def test_a_frozen_encoder_stays_and_the_adapter_learns(
    name: str, norms: bool, tmp_path: Path, tiny_settings: list[str]
) -> None:
    more = ["train.parts=adapters", f"train.norms={str(norms).lower()}", "train.precision=bf16"]
    recipe = read_recipe(QUICKSTART, settings(tiny_settings, name, *more))
    start = prepare(recipe).model
    before: dict[str, Any] = {key: tensor.clone() for key, tensor in start.state_dict().items()}
    running = start_training(recipe, tmp_path / "run")
    list(running.steps())
    after = running.prepared.model.state_dict()
    moved = {key for key in before if not torch.equal(before[key], after[key])}
    encoder = {key for key in moved if key.startswith("encoder.")}
    assert all("norm" in key for key in encoder)
    assert bool(encoder) == norms
    if any(True for _ in start.adapter.parameters()):
        assert any(key.startswith("adapter.") for key in moved)
    held = {id(p) for p in running.session.optimizer.state}
    assert not any(id(p) in held for p in running.prepared.model.encoder.parameters() if not p.requires_grad)
