"""Every adapter of the table in whole runs: saved and loaded, with a trained and with a frozen encoder."""

from pathlib import Path
from typing import Any

import pytest
import torch

import polytask
from polytask import start_training
from polytask.adapters import ADAPTERS

from .conftest import SMALL, MakeRecipe


@pytest.mark.parametrize("name", ADAPTERS)
def test_the_model_of_a_finished_run_is_loaded_with_its_weights(
    name: str, tmp_path: Path, make_recipe: MakeRecipe
) -> None:
    running = start_training(make_recipe(f"adapter={SMALL.get(name, name)}"), tmp_path / "run")
    list(running.steps())
    running.finish()
    model, trained = polytask.load(tmp_path / "run").bundle.model, running.prepared.model
    assert all(torch.equal(tensor, trained.state_dict()[name]) for name, tensor in model.state_dict().items())
    budget = model.budget()
    assert (budget["adapter_shared"] > 0) == (name == "shared")
    assert budget["encoder"] + budget["adapter_shared"] + sum(budget["per_task"].values()) == budget["total"]


@pytest.mark.parametrize("name", ADAPTERS)
@pytest.mark.parametrize("norms", [pytest.param(False, marks=pytest.mark.slow), True])
def test_with_a_frozen_encoder_only_the_adapter_and_heads_learn(
    name: str, norms: bool, tmp_path: Path, make_recipe: MakeRecipe
) -> None:
    settings = ["train.parts=adapters", f"train.norms={str(norms).lower()}", "train.precision=bf16"]
    settings += ["tasks.six.trained=false"] if name == "none" else []  # the head of pairs has no parameters
    running = start_training(make_recipe(f"adapter={SMALL.get(name, name)}", *settings), tmp_path / "run")
    model = running.prepared.model
    before: dict[str, Any] = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    list(running.steps())
    moved = {key for key, tensor in model.state_dict().items() if not torch.equal(before[key], tensor)}
    encoder = {key for key in moved if key.startswith("encoder.")}
    assert all("norm" in key for key in encoder)
    assert bool(encoder) == norms
    if any(True for _ in model.adapter.parameters()):
        assert any(key.startswith("adapter.") for key in moved)
    assert any(key.startswith("heads.") for key in moved)
    held = {id(p) for p in running.session.optimizer.state}
    assert not any(id(p) in held for p in model.encoder.parameters() if not p.requires_grad)
