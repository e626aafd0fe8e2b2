"""The learning rate over a run, as a factor of each group's own rate. Knows step numbers only."""

import math
from typing import Literal

Schedule = Literal["linear", "cosine", "constant"]


def warmup_steps(warmup: float, steps: int) -> int:
    """A share of all steps (below 1), or a number of steps."""
    return round(warmup * steps) if warmup < 1 else min(round(warmup), steps)


def factor(step: int, steps: int, warmup: float, schedule: Schedule) -> float:
    """For step 1, 2 ... `steps`: rises to 1 over the warm-up, then falls to 0 (linear, cosine) or stays (constant)."""
    rising = warmup_steps(warmup, steps)
    if step <= rising:
        return step / rising
    if schedule == "constant":
        return 1.0
    # The last step still learns a little: 0 is reached one step after it.
    left = (steps + 1 - step) / (steps + 1 - rising)
    return left if schedule == "linear" else (1 + math.cos(math.pi * (1 - left))) / 2
