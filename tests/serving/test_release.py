"""When freed memory is returned to the kernel."""

import pytest

from polytask.serving.release import MemoryRelease


class Released:
    """Counts how often memory is returned."""

    def __init__(self) -> None:
        self.count = 0
        self.memory = MemoryRelease(8192, self)

    def __call__(self) -> None:
        self.count += 1


@pytest.fixture
def released() -> Released:
    return Released()


def test_after_as_many_tokens_as_a_full_batch(released: Released) -> None:
    for _ in range(10):
        released.memory.computed(4096, waiting=100, now=5.0)
    assert released.count == 5


def test_when_nothing_waits_but_not_too_often(released: Released) -> None:
    for now in (5.0, 5.1, 5.9, 6.1, 6.2):
        released.memory.computed(600, waiting=0, now=now)
    assert released.count == 2


def test_small_batches_free_too_little(released: Released) -> None:
    for now in range(1000):
        released.memory.computed(100, waiting=0, now=float(now))
    assert released.count == 0
    released.memory.computed(600, waiting=0, now=1000.0)
    assert released.count == 1
