"""Every regularizer of the table, with its default options: with every adapter, in half precision, in whole runs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from polytask import prepare, start_training
from polytask.adapters import ADAPTERS
from polytask.build import make
from polytask.contracts import regularizers as contract
from polytask.contracts.regularizers import penalty, shake
from polytask.regularizers import REGULARIZERS
from polytask.regularizers.base import Regularizer, RegularizerContext
from polytask.runs.prepare import Prepared
from polytask.settings import MethodChoice
from polytask.stream import Stream
from polytask.training.feed import Feed
from polytask.types import Draw, Stage

from .conftest import NEEDS, SMALL, MakeRecipe

NEEDS_ADAPTER = {"soft_sharing"}
PROTECT_SHARED_WEIGHTS = {"ewc", "lwf"}
"""With a frozen encoder, later tasks cannot affect earlier ones, so their penalty is 0."""


def prepared(make_recipe: MakeRecipe, name: str, *more: str) -> Prepared:
    return prepare(make_recipe(*NEEDS.get(name, []), *more))


def made(name: str, ready: Prepared) -> Regularizer:
    """The regularizer after the first step, which ends the first task's stage."""
    model = ready.model
    stages = tuple(Stage(task, step, step) for step, task in enumerate(ready.drawn, 1))
    weights = dict.fromkeys(ready.drawn, 1.0)
    context = RegularizerContext(model, weights, 20, stages, lambda task, count: feed_of(ready).sample(task, 5))
    regularizer: Regularizer = make("regularizer", MethodChoice(name), "here", context)
    regularizer.after_step(model, 1)
    return regularizer


def feed_of(prepared: Prepared) -> Feed:
    formats = {task: prepared.model.input_format(task) for task in prepared.model.tasks}
    return Feed(prepared.splits("train"), prepared.packer, seed=0, formats=formats)


def stream_of(prepared: Prepared, *tasks: str) -> Stream:
    return feed_of(prepared).next_batch([Draw(task, 8) for task in tasks or prepared.drawn]).together


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("name", REGULARIZERS)
def test_the_penalty_is_positive_and_its_gradient_reaches_the_lowest_layer(
    name: str, bf16: bool, make_recipe: MakeRecipe
) -> None:
    ready = prepared(make_recipe, name)
    model = ready.model.train()
    regularizer = made(name, ready)
    shake(model)
    found = penalty(regularizer, model, stream_of(ready), bf16)
    assert found.ndim == 0
    assert found.dtype == torch.float32
    assert found.item() > 0
    found.backward()
    gradients = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    assert all(torch.isfinite(gradient).all() for gradient in gradients.values())
    lowest = ("encoder.layers.0.", "adapter.layers.0.")
    assert any(gradient.abs().sum() > 0 for n, gradient in gradients.items() if n.startswith(lowest))


@pytest.mark.parametrize("holds", contract.PROPERTIES, ids=lambda function: function.__name__)
@pytest.mark.parametrize("name", REGULARIZERS)
def test_the_contract(name: str, holds: Callable[[contract.Subject], None]) -> None:
    adapter = "own_encoder" if name in NEEDS_ADAPTER else "conditional_norm"
    holds(contract.Subject(REGULARIZERS[name], MethodChoice(adapter)))


@pytest.mark.parametrize("adapter", ["conditional_norm", "own_encoder"])
@pytest.mark.parametrize("name", [name for name, method in REGULARIZERS.items() if "pulls" in vars(method)])
def test_pulls_are_the_penalty(name: str, adapter: str, make_recipe: MakeRecipe) -> None:
    """Both say the same: captured steps add the pulls' gradients instead of differentiating the penalty."""
    ready = prepared(make_recipe, name, f"adapter={adapter}")
    model = ready.model.train()
    regularizer = made(name, ready)
    shake(model)
    stream = stream_of(ready, *model.tasks[:2])
    value = penalty(regularizer, model, stream)
    value.backward()
    gradients = {p: p.grad for p in model.parameters() if p.grad is not None}
    pulls = regularizer.pulls(model, model.run(stream))
    assert {pull.weight for pull in pulls} == gradients.keys()
    assert len(pulls) == len(gradients)
    total = torch.zeros(())
    for pull in pulls:
        change = pull.weight if pull.centre is None else pull.weight - pull.centre
        slope = pull.strength * (change if pull.factor is None else pull.factor * change)
        torch.testing.assert_close(slope, gradients[pull.weight])
        total += (slope * change).sum().item() / 2
    torch.testing.assert_close(total, value.detach())


QUICK = ("none", "pal", "lora", "shared")
"""Tried at every change; the other adapters are slow tests."""
PAIRS = [
    pytest.param(name, adapter, marks=() if adapter in QUICK else pytest.mark.slow)
    for name in REGULARIZERS
    for adapter in ADAPTERS
    if name not in NEEDS_ADAPTER or adapter not in ("none", "shared")
]


@pytest.mark.parametrize(("name", "adapter"), PAIRS)
def test_with_every_adapter_and_a_frozen_encoder(name: str, adapter: str, make_recipe: MakeRecipe) -> None:
    parts = "heads" if adapter == "none" else "adapters"
    # The head of pairs has no parameters, so something else must learn.
    pairs = ["tasks.six.trained=false"] if adapter == "none" else []
    ready = prepared(make_recipe, name, f"adapter={SMALL.get(adapter, adapter)}", f"train.parts={parts}", *pairs)
    model = ready.model.train()
    model.encoder.eval()
    regularizer = made(name, ready)
    shake(model)
    found = penalty(regularizer, model, stream_of(ready))
    assert torch.isfinite(found)
    # If only heads are trained, the encoder does not change.
    assert found.requires_grad or adapter == "none" or name in PROTECT_SHARED_WEIGHTS
    if found.requires_grad:
        found.backward()
        learns = [p for p in model.parameters() if p.requires_grad]
        assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in learns)
    assert all(p.grad is None for p in model.encoder.parameters())


@pytest.mark.parametrize("name", REGULARIZERS)
def test_a_run_in_half_precision_with_a_frozen_encoder(name: str, tmp_path: Path, make_recipe: MakeRecipe) -> None:
    more = ["adapter=lora", f"regularizers=[{name}]", "train.parts=adapters", "train.precision=bf16"]
    more += [need for need in NEEDS.get(name, []) if "adapter" not in need]
    running = start_training(make_recipe(*more), tmp_path / "run")
    model = running.prepared.model
    before: dict[str, Any] = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    reports = list(running.steps())
    assert all(torch.isfinite(torch.tensor(report.penalties[name])) for report in reports)
    moved = {key for key, tensor in model.state_dict().items() if not torch.equal(before[key], tensor)}
    assert moved
    assert not any(key.startswith("encoder.") for key in moved)
