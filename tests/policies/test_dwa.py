"""Dynamic weight averaging: hand-worked weights after the second epoch, and its state."""

import math

import pytest
import torch

from polytask.policies.base import PolicyContext
from polytask.policies.dwa import DynamicWeightAverage
from polytask.types import LabelKind, StepReport

KINDS: dict[str, LabelKind] = {"a": "classes", "b": "yes_no", "c": "score"}
STEPS = 2  # in an epoch
EQUAL = [1.0, 1.0, 1.0]


def policy(temperature: float = 2.0, **weights: float) -> DynamicWeightAverage:
    return DynamicWeightAverage(
        PolicyContext({**dict.fromkeys(KINDS, 1.0), **weights}, KINDS, STEPS), temperature=temperature
    )


def report(step: int, **losses: float) -> StepReport:
    return StepReport(step, 100, (step - 1) // STEPS + 1, losses, {}, 1e-3, 1.0, 8, 80, 0.1)


def weights(dwa: DynamicWeightAverage) -> list[float]:
    """The weight of each task's loss, by the gradient of the sum."""
    losses = [torch.tensor(1.0, requires_grad=True) for _ in KINDS]
    total = dwa.weigh(dict(zip(KINDS, losses, strict=True)))
    assert total.dtype == torch.float32
    return [slope.item() for slope in torch.autograd.grad(total, losses)]


def by_hand(*ratios: float, temperature: float = 2.0) -> list[float]:
    powers = [math.exp(ratio / temperature) for ratio in ratios]
    return [len(ratios) * power / sum(powers) for power in powers]


def test_equal_for_two_epochs_then_the_slower_task_weighs_more() -> None:
    dwa = policy()
    assert weights(dwa) == pytest.approx(EQUAL)
    dwa.observe(report(1, a=4.0, b=1.0, c=0.5))
    dwa.observe(report(2, a=2.0, b=3.0, c=0.5))  # means 3, 2, 0.5
    assert weights(dwa) == pytest.approx(EQUAL)
    dwa.observe(report(3, a=1.0, b=2.0, c=0.5))
    assert weights(dwa) == pytest.approx(EQUAL)
    dwa.observe(report(4, a=2.0, b=2.0, c=0.1))  # means 1.5, 2, 0.3
    third = by_hand(0.5, 1.0, 0.6)
    assert weights(dwa) == pytest.approx(third)
    assert third[1] == max(third)
    dwa.observe(report(5, a=1.0, b=1.0, c=0.3))
    assert weights(dwa) == pytest.approx(third)  # until the epoch ends
    dwa.observe(report(6, a=2.0, b=1.0, c=0.3))  # means 1.5, 1, 0.3
    assert weights(dwa) == pytest.approx(by_hand(1.0, 0.5, 1.0))
    assert sum(weights(dwa)) == pytest.approx(3.0)


def test_temperature_and_the_recipes_own_weights() -> None:
    dwa = policy(temperature=0.1, b=10.0)
    for step in (1, 2):
        dwa.observe(report(step, a=1.0, b=1.0, c=1.0))
    for step in (3, 4):
        dwa.observe(report(step, a=0.5, b=0.6, c=0.7))
    a, b, c = by_hand(0.5, 0.6, 0.7, temperature=0.1)
    assert weights(dwa) == pytest.approx([a, 10 * b, c], rel=1e-5)


def test_the_mean_is_over_the_steps_a_task_took_part_in() -> None:
    dwa = policy()
    dwa.observe(report(1, a=2.0, b=1.0))
    dwa.observe(report(2, a=4.0, c=5.0))
    dwa.observe(report(3, a=3.0, b=0.5))
    dwa.observe(report(4, c=5.0))
    assert weights(dwa) == pytest.approx(by_hand(1.0, 0.5, 1.0))


def test_a_task_without_a_loss_in_an_epoch_has_ratio_1() -> None:
    dwa = policy()
    for step, losses in enumerate([{"a": 2.0, "b": 1.0}, {"c": 0.0}, {"a": 1.0}, {"c": 0.3}], start=1):
        dwa.observe(report(step, **losses))
    # b has no loss in the second epoch, and the ratio of c is NaN.
    assert weights(dwa) == pytest.approx(by_hand(0.5, 1.0, 1.0))


def test_what_it_remembers_is_in_its_state_inside_an_epoch_too() -> None:
    whole, first = policy(), policy()
    reports = [report(step, a=1 / step, b=2.0 + step, c=0.3 * step**0.5) for step in range(1, 9)]
    for entry in reports:
        whole.observe(entry)
    for entry in reports[:5]:
        first.observe(entry)
    second = policy()
    second.load_state_dict(first.state_dict())
    assert weights(second) == weights(first)
    for entry in reports[5:]:
        second.observe(entry)
    assert weights(second) == weights(whole)
    assert weights(second) != pytest.approx(EQUAL)
