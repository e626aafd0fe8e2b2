"""Every sampler of the table: seeded, resumable, and drawing only what there is."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from polytask.contracts import samplers as contract
from polytask.contracts.samplers import CONTEXT
from polytask.samplers import SAMPLERS
from polytask.types import Draw


@pytest.mark.parametrize("holds", contract.PROPERTIES, ids=lambda function: function.__name__)
@pytest.mark.parametrize("name", SAMPLERS)
def test_the_contract(name: str, holds: Callable[[contract.Method], None]) -> None:
    holds(SAMPLERS[name])


LEAVING = [name for name in SAMPLERS if name != "in_order"]  # trains each task for a fixed number of steps


@pytest.mark.parametrize("name", LEAVING)
def test_a_task_that_is_left_out_is_not_drawn(name: str) -> None:
    sampler = SAMPLERS[name](CONTEXT)
    for _ in range(20):
        sampler.next_step()
    assert sampler.leave_out(["large"])
    drawn = [sampler.next_step() for _ in range(200)]
    assert {draw.task for step in drawn for draw in step} == {"small", "middle"}
    assert all(step for step in drawn)
    assert sampler.leave_out(["large", "small"])
    assert {draw.task for _ in range(50) for draw in sampler.next_step()} == {"middle"}
    assert not sampler.leave_out(list(CONTEXT.sizes))


@pytest.mark.parametrize("name", LEAVING)
def test_a_resumed_sampler_leaves_out_the_same(name: str) -> None:
    def drawn(state: dict[str, int] | None) -> list[tuple[Draw, ...]]:
        sampler = SAMPLERS[name](CONTEXT)
        if state is None:
            for _ in range(30):
                sampler.next_step()
        else:
            sampler.load_state_dict(state)
        sampler.leave_out(["middle"])
        return [sampler.next_step() for _ in range(50)]

    assert drawn({"steps_given": 30}) == drawn(None)


@pytest.mark.parametrize("name", SAMPLERS)
def test_batch_sizes_of_tasks(name: str) -> None:
    """With batch sizes in inverse proportion to the texts' lengths, all steps have about the same number of tokens."""
    tokens = {"small": 30, "large": 10, "middle": 60}
    sizes = {task: 1200 // length for task, length in tokens.items()}
    sampler = SAMPLERS[name](replace(CONTEXT, batch_size=80, batch_sizes=sizes, epochs=4))
    steps = [sampler.next_step() for _ in range(200)]
    mean = sum(draw.count * tokens[draw.task] for step in steps for draw in step) / len(steps)
    if name == "balanced":  # its steps have different sizes by definition; they are about right over a round
        assert 1200 / 3 < mean < 1200 * 3
    else:
        assert mean == pytest.approx(1200, rel=0.05)
    if name not in ("mixed", "balanced"):
        assert {(draw.task, draw.count) for step in steps for draw in step} <= set(sizes.items())


@pytest.mark.parametrize("name", ["proportional", "sequential", "in_order", "mixed"])
def test_every_example_is_drawn_equally_often_whatever_the_batch_sizes(name: str) -> None:
    context = replace(CONTEXT, sizes={"a": 2000, "b": 3000}, batch_size=40, batch_sizes={"a": 20, "b": 100})
    steps = 2000 // 20 + 3000 // 100
    sampler = SAMPLERS[name](replace(context, steps_per_epoch=steps, epochs=20))
    seen: Counter[str] = Counter()
    for _ in range(20 * steps):
        for draw in sampler.next_step():
            seen[draw.task] += draw.count
    assert seen["a"] / 2000 == pytest.approx(seen["b"] / 3000, rel=0.1)


def test_a_task_of_weight_zero_is_never_drawn_instead() -> None:
    sampler = SAMPLERS["weights"](CONTEXT, weights={"small": 1, "large": 0, "middle": 1})
    assert sampler.leave_out(["small"])
    assert {draw.task for _ in range(50) for draw in sampler.next_step()} == {"middle"}
    assert not sampler.leave_out(["small", "middle"])
