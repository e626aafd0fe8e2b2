from polytask.samplers.base import SamplerContext
from polytask.samplers.round_robin import RoundRobin
from polytask.types import Draw


def test_tasks_take_turns_whatever_their_size() -> None:
    sampler = RoundRobin(SamplerContext({"tiny": 1, "huge": 10**6}, 4, 0, 100, 1))
    assert [sampler.next_step() for _ in range(5)] == [(Draw(t, 4),) for t in ("tiny", "huge", "tiny", "huge", "tiny")]


def test_shares_are_equal_and_an_epoch_does_not_end_with_the_smallest() -> None:
    sampler = RoundRobin(SamplerContext({"tiny": 3, "huge": 10**6, "small": 40}, 4, 0, 300, 1))
    steps = [sampler.next_step()[0].task for _ in range(300)]
    assert {task: steps.count(task) for task in steps} == {"tiny": 100, "huge": 100, "small": 100}
