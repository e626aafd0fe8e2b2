"""The estimate of how fast a server computes."""

import pytest

from polytask.serving.pace import Pace


def test_before_the_first_batch_nothing_takes_time() -> None:
    assert Pace().seconds_for(1000) == 0


def test_one_batch_is_the_estimate() -> None:
    pace = Pace()
    pace.computed(500, 0.25)
    assert pace.seconds_for(1000) == pytest.approx(0.5)


def test_larger_and_later_batches_count_more() -> None:
    pace = Pace()
    for _ in range(1000):
        pace.computed(20, 0.002)  # single inputs are slow per token
    pace.computed(8000, 0.8)
    assert pace.seconds_for(8000) == pytest.approx(0.8, rel=0.06)
    for _ in range(20):
        pace.computed(8000, 8.0)  # other programs use the cores
    assert pace.seconds_for(8000) == pytest.approx(8.0, rel=0.02)


def test_small_batches_count_only_if_there_is_no_other() -> None:
    pace = Pace(least=512)
    pace.computed(20, 0.005)
    assert pace.seconds_for(20) == 0.005
    pace.computed(8000, 0.08)
    for _ in range(100):
        pace.computed(20, 0.005)
    assert pace.seconds_for(8000) < 0.09


def test_a_process_that_was_stopped_is_not_slow_for_long() -> None:
    pace = Pace()
    pace.computed(1000, 0.1)
    pace.computed(1000, 3600.0)
    assert pace.seconds_for(1000) < 0.3


def test_it_can_start_again() -> None:
    pace = Pace(least=10)
    pace.computed(1000, 10.0)
    pace.forget()
    assert pace.seconds_for(1000) == 0
    pace.computed(5, 1.0)
    assert pace.seconds_for(5) == 1.0
