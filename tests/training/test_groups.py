"""Learning rates and decay by part, against hand-worked numbers."""

from typing import Any

import pytest

from polytask.settings import TrainSettings
from polytask.training.groups import parameter_groups


def rates(model: Any, **settings: Any) -> dict[str, tuple[float, float]]:
    groups = parameter_groups(model, TrainSettings(**settings), lr=1.0, weight_decay=0.1)
    return {name: (group["lr"], group["weight_decay"]) for group in groups for name, _ in group["params"]}


def test_layer_wise_rates_and_no_decay_of_vectors(make_session: Any) -> None:
    model = make_session().model
    found = rates(model, layer_decay=0.5, head_lr=3.0)
    assert found["encoder.layers.1.up.weight"] == (1.0, 0.1)
    assert found["encoder.layers.0.up.weight"] == (0.5, 0.1)
    assert found["encoder.words.weight"] == (0.25, 0.1)
    assert found["encoder.norm.weight"] == (0.25, 0.0)
    assert found["encoder.layers.1.up.bias"] == (1.0, 0.0)
    assert found["heads.one.output.weight"] == (3.0, 0.1)
    assert found["heads.one.output.bias"] == (3.0, 0.0)


def test_every_parameter_that_learns_is_in_one_group(make_session: Any) -> None:
    model = make_session().model
    names = [name for group in parameter_groups(model, TrainSettings(), 1.0, 0.1) for name, _ in group["params"]]
    assert sorted(names) == sorted(name for name, _ in model.named_parameters())


@pytest.mark.parametrize("parts", ["heads"])
def test_frozen_parts_are_in_none(make_session: Any, parts: str) -> None:
    model = make_session(parts=parts).model
    assert all(name.startswith("heads.") for name in rates(model, parts=parts))
