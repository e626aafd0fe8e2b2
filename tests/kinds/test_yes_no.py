"""Yes or no is a task of two classes whose scores are 0 and the output."""

import math

import numpy as np
import pytest
import torch

from polytask.kinds.base import Form
from polytask.kinds.classes import Classes
from polytask.kinds.names import LabelProblem
from polytask.kinds.yes_no import YesNo
from polytask.settings import TaskSpec
from polytask.types import YES_NO

KIND = YesNo()
SPEC = TaskSpec("t", "yes_no", ("text",), "label", "train.csv", "dev.csv")


def outputs(seed: int = 0) -> torch.Tensor:
    return torch.randn(7, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def as_classes(outputs_B: torch.Tensor) -> torch.Tensor:
    return torch.stack((torch.zeros_like(outputs_B), outputs_B), -1)


@pytest.mark.parametrize(("value", "number"), [(1, 1), (1.0, 1), (True, 1), (" y ", 1), (0, 0), ("0.0", 0), (False, 0)])
def test_spellings(value: object, number: int) -> None:
    assert KIND.reader(SPEC).read(value) == number


@pytest.mark.parametrize("value", [None, "  ", math.nan, 2, "maybe", [1]])
def test_labels_that_cannot_be_used(value: object) -> None:
    with pytest.raises(LabelProblem):
        KIND.reader(SPEC).read(value)


def test_labels_and_targets() -> None:
    assert KIND.space(SPEC, {}, 0, None) is YES_NO
    targets = KIND.targets(YES_NO, {}, np.array([0, 1, 1]))
    assert targets.dtype == np.float32
    assert KIND.class_counts(YES_NO, targets) == (1, 2)
    assert KIND.label({}, 1) == "yes"


def test_losses_and_distances_are_those_of_two_classes() -> None:
    gold = torch.tensor([0, 1, 1, 0, 1, 0, 0])
    one, other, two = outputs(), outputs(1), Classes()
    torch.testing.assert_close(KIND.losses(one, gold.double()), two.losses(as_classes(one), gold))
    torch.testing.assert_close(
        KIND.distance(one, other, False), two.distance(as_classes(one), as_classes(other), False)
    )


@pytest.mark.parametrize("form", ["kl", "cross_entropy"])
def test_distillation_is_that_of_two_classes(form: Form) -> None:
    one, other = outputs(), outputs(1)
    expected = Classes().distillation(as_classes(one), as_classes(other), 3.0, form)
    torch.testing.assert_close(KIND.distillation(one, other, 3.0, form), expected)


def test_predictions() -> None:
    decoded = KIND.decode(torch.tensor([-1.0, 2.0]), YES_NO)
    assert [label for label, _ in decoded] == ["no", "yes"]
    assert decoded[1][1] == pytest.approx({"no": 1 - 0.880797, "yes": 0.880797})
    assert KIND.predicted(torch.tensor([-1.0, 0.0, 2.0]), YES_NO).tolist() == [0, 0, 1]
