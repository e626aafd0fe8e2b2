"""Learning-rate schedules, as a factor of each parameter group's base rate. Knows step numbers only."""

import math
from typing import Literal

Schedule = Literal["linear", "cosine", "constant"]


def warmup_steps(warmup: float, steps: int) -> int:
    """Return the number of warm-up steps; `warmup` is a share of all steps if it is below 1, else a number of steps."""
    return round(warmup * steps) if warmup < 1 else min(round(warmup), steps)


def factor(step: int, steps: int, warmup: float, schedule: Schedule) -> float:
    """Return the factor of step 1, 2 ... `steps`: it rises to 1 during warm-up, then falls to 0 or stays constant."""
    warmup_end = warmup_steps(warmup, steps)
    if step <= warmup_end:
        return step / warmup_end
    if schedule == "constant":
        return 1.0
    # 0 would be reached one step after the last, so that the last step still has an effect.
    left = (steps + 1 - step) / (steps + 1 - warmup_end)
    return left if schedule == "linear" else (1 + math.cos(math.pi * (1 - left))) / 2
