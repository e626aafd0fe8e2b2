import math

import pytest

from polytask.training.schedules import factor


def test_warm_up_then_linear_by_hand() -> None:
    factors = [factor(step, 10, 4, "linear") for step in range(1, 11)]
    assert factors == pytest.approx([1 / 4, 2 / 4, 3 / 4, 1, 6 / 7, 5 / 7, 4 / 7, 3 / 7, 2 / 7, 1 / 7])


def test_warm_up_as_a_share_is_the_same() -> None:
    assert [factor(s, 10, 0.4, "linear") for s in range(1, 11)] == [factor(s, 10, 4, "linear") for s in range(1, 11)]


def test_cosine_and_constant() -> None:
    assert factor(1, 100, 0, "cosine") == pytest.approx((1 + math.cos(math.pi / 101)) / 2, abs=1e-3)
    assert factor(51, 100, 0.0, "cosine") == pytest.approx(0.5, abs=0.01)
    assert [factor(s, 3, 0, "constant") for s in (1, 2, 3)] == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("schedule", ["linear", "cosine", "constant"])
@pytest.mark.parametrize("warmup", [0, 0.1, 0.5, 3, 1000])
def test_always_between_0_and_1_and_learning(schedule: str, warmup: float) -> None:
    values = [factor(step, 20, warmup, schedule) for step in range(1, 21)]  # type: ignore[arg-type]
    assert all(0 < value <= 1 for value in values)
