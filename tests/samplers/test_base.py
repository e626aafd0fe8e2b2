"""Tasks are drawn as numpy draws them from the step's own generator."""

import numpy as np
import pytest

from polytask import seeds
from polytask.samplers.annealed import Annealed
from polytask.samplers.base import RandomSampler, SamplerContext
from polytask.samplers.power import Power
from polytask.samplers.weights import Weights

CONTEXT = SamplerContext({"a": 900, "b": 31, "c": 4}, 4, 5, 20, 5)
SAMPLERS = [Annealed(CONTEXT), Power(CONTEXT, alpha=0.3), Weights(CONTEXT, weights={"a": 0.0, "b": 1.0, "c": 0.1})]


@pytest.mark.parametrize("sampler", SAMPLERS, ids=lambda sampler: type(sampler).__name__)
def test_draws_are_those_of_choice(sampler: RandomSampler) -> None:
    steps = [*range(150), 1000, 3]  # in any order
    expected = [
        seeds.generator(CONTEXT.seed, "sampler", step).choice(3, p=sampler.probabilities(step)) for step in steps
    ]
    assert [sampler.tasks.index(sampler.draws(step)[0].task) for step in steps] == expected
    assert len(np.unique(expected)) > 1
