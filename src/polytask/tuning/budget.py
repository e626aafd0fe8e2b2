"""The time of a tuning: how long runs take, and what still fits. Knows numbers; starts nothing."""

import math
import time
from dataclasses import dataclass, field
from statistics import median

from polytask.studies.table import seconds
from polytask.tuning.plan import RUNGS
from polytask.types import UserError

KEPT = 3
"""One in three trials of a length goes on to the next."""
RECENT = 5
"""The number of runs of a length whose times count: the machine may have become slower or faster."""
BRACKETS = (9, 6, 3)
"""The numbers of trials that a bracket may start with."""
MOST_SEEDS, ENOUGH_SEEDS, FEWEST_SEEDS = 5, 3, 2
"""Of the final runs: at most; before more trials are let into the final; and for any claim at all."""


@dataclass
class Budget:
    """The time of a tuning, in seconds, since this object was created."""

    total: float
    workers: int
    top: int
    """The number of finalists besides the recipe, at most."""
    used_before: float = 0.0
    """By earlier processes of the same tuning."""
    calibrated: tuple[float, float] = (0.0, 0.0)
    """The estimated time of all steps and evaluations of the recipe, and that which every run takes besides."""
    times: dict[int, list[float]] = field(default_factory=lambda: {ninths: [] for ninths in RUNGS})
    """The measured times of runs, by ninths of the recipe's steps."""
    started: float = field(default_factory=time.monotonic)

    @property
    def used(self) -> float:
        return self.used_before + time.monotonic() - self.started

    @property
    def left(self) -> float:
        return self.total - self.used

    def record(self, ninths: int, took: float) -> None:
        self.times[ninths].append(took)

    def seconds(self, ninths: int) -> float:
        """Estimates the time of a run of this length from the latest ones, or from the calibration."""
        if self.times[ninths]:
            return float(median(self.times[ninths][-RECENT:]))
        whole, overhead = self.calibrated
        return overhead + whole * ninths / RUNGS[-1]

    def bracket_seconds(self, size: int) -> float:
        """Estimates the time of a bracket that starts with this number of trials."""
        runs = [math.ceil(size / KEPT**i) for i in range(len(RUNGS))]
        each = [
            math.ceil(count / self.workers) * self.seconds(ninths) for count, ninths in zip(runs, RUNGS, strict=True)
        ]
        return math.fsum(each)

    def round_seconds(self, runs: int) -> float:
        """Estimates the time of final runs with one seed."""
        return math.ceil(runs / self.workers) * self.seconds(RUNGS[-1])

    def least_final(self) -> float:
        """Estimates the time of the smallest final: the recipe and one trial."""
        return FEWEST_SEEDS * self.round_seconds(2)

    def reserve(self) -> float:
        """Returns the time to keep for the final: half of the budget, but not more than it can use."""
        return min(max(self.total / 2, self.least_final()), MOST_SEEDS * self.round_seconds(self.top + 1))

    # --- what fits ----------------------------------------------------------------------------------------------------
    def bracket(self, first: bool = False) -> int | None:
        """Returns the size of the largest bracket that fits; None if there is no time for any.

        The first bracket has at least three trials: `check` has found time for them and for the smallest final.
        """
        left = self.left - self.reserve()
        fitting = (size for size in BRACKETS if self.bracket_seconds(size) <= left)
        return next(fitting, BRACKETS[-1] if first else None)

    def allows(self, ninths: int) -> bool:
        """Whether a run of the search fits: estimates may have been wrong when its bracket started."""
        return self.seconds(ninths) <= self.left - self.least_final()

    def finalists(self) -> int:
        """Returns how many trials go to the final: as many as leave time for three seeds, at least one."""
        fitting = [n for n in range(1, self.top + 1) if ENOUGH_SEEDS * self.round_seconds(n + 1) <= self.left]
        return max(fitting, default=1)

    def check(self) -> None:
        """Raises a UserError if the smallest search, after the time already used, does not fit into the budget."""
        fewest, one = BRACKETS[-1], self.seconds(RUNGS[-1])
        needed = self.used + self.bracket_seconds(fewest) + self.least_final()
        if needed > self.total:
            raise UserError(
                f"--budget: {seconds(self.total)} is too short: one run of this recipe takes about {seconds(one)} "
                f"here, and the smallest search ({fewest} trials, then the best one and the recipe with "
                f"{FEWEST_SEEDS} seeds) about {seconds(needed)}; pass a larger budget, or shorten the recipe, as "
                "with --set train.epochs=1"
            )
