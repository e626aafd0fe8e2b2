"""Proportional in the first epoch, nearly equal in the last, and each epoch by the paper's formula."""

from typing import Any

import pytest

from polytask.samplers.annealed import Annealed
from polytask.samplers.base import SamplerContext
from polytask.samplers.proportional import Proportional

SIZES = {"a": 3200, "b": 100}


def context(epochs: int, steps: int = 2000) -> SamplerContext:
    return SamplerContext(SIZES, 4, 0, steps, epochs)


@pytest.mark.parametrize("epochs", [2, 3, 5, 25])
def test_each_epoch_has_the_papers_alpha(epochs: int) -> None:
    sampler = Annealed(context(epochs, steps=7))
    for epoch in range(1, epochs + 1):
        alpha = 1 - 0.8 * (epoch - 1) / (epochs - 1)
        assert sampler.alpha(epoch) == pytest.approx(alpha)
        for step in (7 * (epoch - 1), 7 * epoch - 1):  # its first and its last step
            assert sampler.probabilities(step) == pytest.approx([32**alpha / (32**alpha + 1), 1 / (32**alpha + 1)])


def test_frequencies_epoch_by_epoch(fit: Any) -> None:
    sampler = Annealed(context(5))
    for alpha in (1.0, 0.8, 0.6, 0.4, 0.2):  # `fit` takes one epoch's steps each time
        assert fit(sampler, [32**alpha, 1]) > 0.001


def test_the_first_epoch_is_proportional_and_a_single_one_too() -> None:
    for epochs in (1, 4):
        sampler, other = Annealed(context(epochs)), Proportional(context(epochs))
        assert [sampler.next_step() for _ in range(500)] == [other.next_step() for _ in range(500)]
    assert Annealed(context(1)).alpha(1) == 1.0


def test_with_one_epoch_a_warning_names_the_equivalent_sampler(caplog: pytest.LogCaptureFixture) -> None:
    for options in ({}, {"first": 0.7}):
        Annealed(context(1), **options)
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]
    proportional, power = caplog.messages
    assert "with train.epochs: 1 nothing is annealed, so it is the same as sampler: proportional" in proportional
    assert "sampler: {name: power, alpha: 0.7}" in power
    caplog.clear()
    Annealed(context(2))
    Annealed(context(1), first=0.5, last=0.5)  # intended, so no warning
    assert not caplog.messages


def test_other_ends() -> None:
    sampler = Annealed(context(3, steps=10), first=0.5, last=0.0)
    assert [sampler.alpha(epoch) for epoch in (1, 2, 3)] == [0.5, 0.25, 0.0]
    assert sampler.probabilities(29) == pytest.approx([0.5, 0.5])
    assert sampler.probabilities(30) == pytest.approx([0.5, 0.5])  # it stays constant after the last epoch
