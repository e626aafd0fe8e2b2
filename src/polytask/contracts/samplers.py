"""Properties of samplers, with three tasks and a hundred steps."""

import json
from collections.abc import Callable
from dataclasses import replace

from polytask.contracts.claims import require
from polytask.samplers.base import Sampler, SamplerContext
from polytask.types import Draw

Method = Callable[[SamplerContext], Sampler]
CONTEXT = SamplerContext({"small": 10, "large": 1000, "middle": 300}, 8, seed=3, steps_per_epoch=50, epochs=2)
STEPS = 100


def first(method: Method, count: int, seed: int = 3) -> list[tuple[Draw, ...]]:
    sampler = method(replace(CONTEXT, seed=seed))
    return [sampler.next_step() for _ in range(count)]


def same_seed_same_draws(method: Method) -> None:
    """The same seed gives the same draws."""
    for step, (one, other) in enumerate(zip(first(method, STEPS), first(method, STEPS), strict=True)):
        require(one == other, f"two samplers with the same seed draw {one} and {other} in step {step}")


def draws_what_there_is(method: Method) -> None:
    """Every step has one or more examples, of tasks that exist, and no task twice."""
    for step, draws in enumerate(first(method, STEPS)):
        tasks = [draw.task for draw in draws]
        require(draws, f"step {step} has no task")
        require(set(tasks) <= set(CONTEXT.sizes), f"step {step} has tasks that do not exist: {tasks}")
        require(len(set(tasks)) == len(tasks), f"step {step} has a task twice: {tasks}")
        require(all(draw.count > 0 for draw in draws), f"step {step} has a task without examples: {draws}")


def resumes_from_its_state(method: Method) -> None:
    """A sampler that loads the state, which goes through JSON, continues with the same draws."""
    whole = first(method, STEPS)
    for stop in (0, 1, 37, 99):
        sampler = method(CONTEXT)
        for _ in range(stop):
            sampler.next_step()
        state = json.loads(json.dumps(sampler.state_dict()))
        other = method(CONTEXT)
        other.load_state_dict(state)
        found = [other.next_step() for _ in range(STEPS - stop)]
        require(found == whole[stop:], f"after load_state_dict at step {stop} the draws differ")


PROPERTIES = (same_seed_same_draws, draws_what_there_is, resumes_from_its_state)
