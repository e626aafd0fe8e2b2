"""Uncertainty weighting: the paper's formula, its optimum, and which tasks' variances change."""

import itertools
import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from polytask import read_recipe, start_training
from polytask.policies.base import PolicyContext
from polytask.policies.uncertainty import Uncertainty
from polytask.types import LabelKind

QUICKSTART = Path(__file__).parents[2] / "recipes" / "quickstart.yaml"
# Task names, including some that are attributes of a module.
KINDS: dict[str, LabelKind] = {"a-b": "classes", "type": "yes_no", "2_c": "score"}


def policy(weights: dict[str, float] | None = None) -> Uncertainty:
    return Uncertainty(PolicyContext(weights or dict.fromkeys(KINDS, 1.0), KINDS, 10))


def test_the_formula() -> None:
    made = policy({"a-b": 1.0, "type": 3.0, "2_c": 0.5})
    losses = {"a-b": torch.tensor(0.7), "type": torch.tensor(2.0), "2_c": torch.tensor(4.0)}
    assert made.weigh(losses).item() == pytest.approx(0.7 + 3 * 2.0 + 0.5 * 4.0 / 2)
    with torch.no_grad():
        for parameter, s in zip(made.parameters(), (0.4, -1.0, 2.0), strict=True):
            parameter.fill_(s)
    expected = math.exp(-0.4) * 0.7 + 0.2 + math.exp(1) * 3 * 2.0 - 0.5 + math.exp(-2) * 0.5 * 4.0 / 2 + 1.0
    assert made.weigh(losses).item() == pytest.approx(expected)


@pytest.mark.parametrize("loss", [0.05, 3.0])
def test_it_settles_where_every_task_counts_the_inverse_of_its_loss(loss: float) -> None:
    made = policy({"a-b": 1.0, "type": 3.0, "2_c": 0.5})
    losses = {task: torch.tensor(loss, requires_grad=True) for task in KINDS}
    optimizer = torch.optim.Adam(made.parameters(), lr=0.05)
    for _ in range(1000):
        optimizer.zero_grad()
        made.weigh(losses).backward()
        optimizer.step()
    settled = [parameter.item() for parameter in made.parameters()]
    assert settled == pytest.approx([math.log(2 * loss), math.log(2 * 3 * loss), math.log(0.5 * loss)], abs=1e-3)
    slopes = torch.autograd.grad(made.weigh(losses), list(losses.values()))
    assert [slope.item() for slope in slopes] == pytest.approx([1 / (2 * loss)] * 3, rel=1e-3)


def test_a_task_that_took_no_part_has_no_gradient() -> None:
    made = policy()
    made.weigh({"type": torch.tensor(2.0)}).backward()
    moved = {name: parameter.grad is not None for name, parameter in made.named_parameters()}
    assert moved == {"log_variance_a-b": False, "log_variance_type": True, "log_variance_2_c": False}


def test_in_a_run_it_learns_for_the_sampled_tasks(tmp_path: Path, tiny_settings: list[str]) -> None:
    settings = [*tiny_settings, "policy=uncertainty", "train.save_every=2"]
    running = start_training(read_recipe(QUICKSTART, settings), tmp_path / "run")
    seen = [task for report in itertools.islice(running.steps(), 2) for task in report.losses]
    assert len(set(seen)) == 2
    saved = load_file(tmp_path / "run" / "checkpoints" / "step-2" / "methods.safetensors")
    moved = {name.removeprefix("policy/log_variance_") for name, s in saved.items() if s != 0}
    assert moved == set(seen)
    assert len(saved) == 3
