"""How long a batch waits for more inputs. Times are numbers that the tests choose."""

from polytask.serving.gathering import Gathering

PAUSE = 0.005


def test_the_first_batch_does_not_wait() -> None:
    assert Gathering().end(inputs=1, first=3.0, last=3.0, pause=PAUSE) == 3.0


def test_as_many_inputs_as_lately_do_not_wait() -> None:
    gathering = Gathering()
    gathering.computed(inputs=8, waiting=8, started=1.0, finished=1.03)
    assert gathering.expected == 16
    assert gathering.end(inputs=16, first=1.01, last=1.04, pause=PAUSE) == 1.04
    assert gathering.end(inputs=15, first=1.01, last=1.04, pause=PAUSE) > 1.04


def test_a_batch_waits_until_nothing_arrives_for_a_while() -> None:
    gathering = Gathering()
    gathering.computed(inputs=8, waiting=8, started=1.0, finished=1.03)
    assert gathering.end(inputs=8, first=1.01, last=1.02, pause=PAUSE) == 1.03 + PAUSE  # after the last batch
    assert gathering.end(inputs=9, first=1.01, last=1.034, pause=PAUSE) == 1.034 + PAUSE
    assert gathering.end(inputs=9, first=9.0, last=9.001, pause=PAUSE) == 9.001 + PAUSE


def test_a_batch_waits_at_most_half_as_long_as_the_last_one_took() -> None:
    gathering = Gathering()
    gathering.computed(inputs=8, waiting=8, started=1.0, finished=1.5)
    assert gathering.end(inputs=15, first=1.01, last=1.7499, pause=PAUSE) == 1.75
    assert gathering.end(inputs=15, first=2.0, last=2.2499, pause=PAUSE) == 2.25
    gathering.computed(inputs=1, waiting=0, started=2.0, finished=2.003)
    assert gathering.expected == 1  # the other clients are gone
