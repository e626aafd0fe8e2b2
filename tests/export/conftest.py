"""Runs' model folders with numbers as if trained: made in a moment, and away from the start, where much is zero."""

import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from polytask import prepare, read_recipe
from polytask.runs.bundle import save_bundle

QUICKSTART = Path(__file__).parent.parent.parent / "recipes" / "quickstart.yaml"
MakeRun = Callable[..., Path]


@pytest.fixture
def make_run(tmp_path: Path, tiny_settings: list[str]) -> MakeRun:
    """make_run(name, settings, tasks): its encoder is what the recipe's seed makes, as after training a frozen one."""

    def make(name: str, settings: tuple[str, ...] = (), tasks: tuple[str, ...] = ()) -> Path:
        recipe = read_recipe(QUICKSTART, [*tiny_settings, *settings])
        recipe = replace(recipe, tasks={task: recipe.tasks[task] for task in tasks or recipe.tasks})
        bundle = prepare(recipe).bundle
        torch.manual_seed(zlib.crc32(name.encode()))
        with torch.no_grad():
            for part in (bundle.model.adapter, bundle.model.heads):
                for parameter in part.parameters():
                    parameter.add_(torch.randn_like(parameter), alpha=0.1)
        save_bundle(bundle, tmp_path / name / "model")
        return tmp_path / name

    return make
