"""Every sampler of the table: seeded, resumable, and drawing only what there is."""

import json

import pytest

from polytask.samplers import SAMPLERS
from polytask.samplers.base import SamplerContext
from polytask.types import Draw

CONTEXT = SamplerContext({"small": 10, "large": 1000, "middle": 300}, 8, seed=3, steps_per_epoch=50, epochs=2)


def first(name: str, count: int, seed: int = 3) -> list[tuple[Draw, ...]]:
    context = SamplerContext(CONTEXT.sizes, 8, seed, 50, 2)
    sampler = SAMPLERS[name](context)
    return [sampler.next_step() for _ in range(count)]


@pytest.mark.parametrize("name", SAMPLERS)
def test_same_seed_same_draws(name: str) -> None:
    draws = first(name, 100)
    assert draws == first(name, 100)
    assert {draw.task for step in draws for draw in step} <= set(CONTEXT.sizes)
    assert all(draw.count > 0 for step in draws for draw in step)


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("stop", [0, 1, 37, 99])
def test_resumes_exactly_from_its_saved_state(name: str, stop: int) -> None:
    sampler = SAMPLERS[name](CONTEXT)
    for _ in range(stop):
        sampler.next_step()
    state = json.loads(json.dumps(sampler.state_dict()))
    other = SAMPLERS[name](CONTEXT)
    other.load_state_dict(state)
    assert [other.next_step() for _ in range(100 - stop)] == first(name, 100)[stop:]
