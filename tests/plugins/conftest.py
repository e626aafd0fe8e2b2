"""Plug-in files with an adapter, a loss and a metric, data for them, and a configuration folder for each test."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from polytask import methods

ADAPTER = '''
"""A scale for the output of each layer and task."""

import torch
from torch import Tensor

import polytask
from polytask.adapters.base import Adapter, AdapterContext, LayerAdapter, on_layers
from polytask.adapters.per_task import TaskVector
from polytask.settings import Positive
from polytask.stream import Layout


class ScaleLayer(LayerAdapter):
    def __init__(self, context: AdapterContext, strength: float) -> None:
        super().__init__()
        self.strength = strength
        self.scale = TaskVector(context.tasks, context.hidden)

    def output(self, h_TD: Tensor, layout: Layout) -> Tensor:
        return h_TD * (1 + self.strength * self.scale(h_TD, layout))


class Scale(Adapter):
    """`(1 + strength s_t) * h` after each layer."""

    def __init__(self, context: AdapterContext, *, strength: Positive = 1.0) -> None:
        super().__init__(LayerAdapter(), on_layers(context, None, lambda: ScaleLayer(context, strength)), context.tasks)


polytask.register("adapter", "scale", Scale)
'''
LOSS = '''
from typing import ClassVar

import numpy as np
import torch.nn.functional as F
from torch import Tensor

import polytask
from polytask.losses.base import Loss, at_least_float32
from polytask.types import LabelKind


class Confident(Loss):
    """Cross-entropy of sharpened outputs."""

    kinds: ClassVar[tuple[LabelKind, ...]] = ("classes",)

    def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(2 * at_least_float32(outputs), labels)


def first_class(gold, predicted):
    """The share of rows whose label is the first class and was found."""
    return float(np.mean((gold == 0) & (predicted == 0)))


polytask.register("loss", "confident", Confident)
polytask.register("metric", "first_class", first_class)
'''
TASK = {"kind": "classes", "text": "text", "label": "mood", "train": "data.csv", "dev": "data.csv"}
RECIPE: dict[str, Any] = {
    "encoder": {"layers": 2, "hidden": 16, "heads": 2, "ffn": 32, "positions": 32},
    "max_length": 16,
    "plugins": ["my_adapter.py", "my_loss.py"],
    "adapter": {"name": "scale", "strength": 0.5},
    "tasks": {"mood": {**TASK, "loss": "confident", "metrics": ["first_class"]}, "other": TASK},
    "train": {"epochs": 2, "steps_per_epoch": 4, "batch_size": 6, "device": "cpu", "save_every": 2},
}


@pytest.fixture(autouse=True)
def new_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A user who has trusted nothing; what a test registers is removed."""
    monkeypatch.setenv("POLYTASK_CONFIG", str(tmp_path / "config"))
    before = dict(methods.REGISTERED)
    yield
    for key, entry in list(methods.REGISTERED.items()):
        if key not in before:
            methods.remove(entry)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a recipe, its data and its two plug-ins."""
    folder = tmp_path / "project"
    folder.mkdir()
    rows = [f"the book was {word} {n},{mood}" for n in range(8) for word, mood in (("good", "glad"), ("dull", "sad"))]
    (folder / "data.csv").write_text("text,mood\n" + "\n".join(rows) + "\n")
    (folder / "my_adapter.py").write_text(ADAPTER)
    (folder / "my_loss.py").write_text(LOSS)
    (folder / "recipe.yaml").write_text(yaml.safe_dump(RECIPE))
    return folder


@pytest.fixture
def change(folder: Path) -> Callable[[str], Path]:
    """Adds a line to a plug-in; returns its path."""

    def changed(name: str) -> Path:
        with (folder / name).open("a") as file:
            file.write("\nCHANGED = True\n")
        return folder / name

    return changed
