"""Where the time of a run goes."""

import pytest

from polytask.runs import phases
from polytask.runs.phases import Phases


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that each call of the clock returns."""
    times: list[float] = []
    monkeypatch.setattr(phases.time, "perf_counter", lambda: times.pop(0))
    return times


def test_phases_follow_each_other_and_are_added_up(clock: list[float]) -> None:
    clock += [10.0, 12.0, 15.0, 16.0]
    measured = Phases()
    for phase in ("data", "model", "data"):
        measured.end(phase)
    assert measured.seconds == {"data": 3.0, "model": 3.0}


def test_parts_of_a_phase_are_not_counted_twice(clock: list[float]) -> None:
    clock += [0.0, 10.0]
    measured = Phases()
    measured.end("records", {"steps": 6.0, "evaluations": 3.0})
    assert measured.seconds == {"records": 1.0, "steps": 6.0, "evaluations": 3.0}
