"""Shares as given in the recipe; ambiguous weights are refused."""

from typing import Any

import pytest

from polytask.build import make
from polytask.samplers.base import SamplerContext
from polytask.samplers.weights import Weights
from polytask.settings import MethodChoice
from polytask.types import UserError

CONTEXT = SamplerContext({"sst": 10, "quora": 10_000, "sts": 300}, 4, 0, 100, 1)


def test_frequencies_follow_the_weights(fit: Any) -> None:
    sampler = make(
        "sampler", MethodChoice("weights", {"weights": {"quora": 3, "sts": "2.5", "sst": 1}}), "here", CONTEXT
    )
    assert sampler.probabilities(0) == pytest.approx([1 / 6.5, 3 / 6.5, 2.5 / 6.5])
    assert fit(sampler, [1, 3, 2.5]) > 0.001


def test_left_out_they_are_equal(fit: Any) -> None:
    assert fit(Weights(CONTEXT), [1, 1, 1]) > 0.001


def test_zero_leaves_a_task_out() -> None:
    sampler = Weights(CONTEXT, weights={"sst": 1, "quora": 0, "sts": 1})
    assert {sampler.next_step()[0].task for _ in range(300)} == {"sst", "sts"}


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        (
            {"sst": 1, "quora": 1, "sts": 1, "qora": 2},
            r"there is no trained task or group 'qora' .did you mean quora.*Valid: quora, sst",
        ),
        ({"sst": 1}, "no weight for quora, sts"),
        ({}, "no weight for sst, quora, sts"),
        ({"sst": 0, "quora": 0, "sts": 0.0}, "at least one weight must be above 0"),
    ],
)
def test_wrong_weights_are_named(weights: dict[str, float], words: str) -> None:
    with pytest.raises(UserError, match=r"recipe: sampler\.weights.*" + words):
        Weights(CONTEXT, weights=weights)
