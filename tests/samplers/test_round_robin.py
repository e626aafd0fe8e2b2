from polytask.samplers.base import SamplerContext
from polytask.samplers.round_robin import RoundRobin
from polytask.types import Draw


def test_each_in_turn_however_small() -> None:
    sampler = RoundRobin(SamplerContext({"tiny": 1, "huge": 10**6}, 4, 0, 100, 1))
    assert [sampler.next_step() for _ in range(5)] == [(Draw(t, 4),) for t in ("tiny", "huge", "tiny", "huge", "tiny")]
