"""How the examples of a step are divided among processes: each gets a consecutive part of the step's stream.

The parts have about the same number of tokens. Whatever needs the whole step is in the `StepShare` of a part: it says
which share of the step the part is. Knows numbers of tokens; knows no text and no model.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from polytask.processes import Processes
from polytask.seeds import CommonRandom


@dataclass(frozen=True)
class Division:
    """Divides steps among the processes of a run."""

    processes: Processes
    random: CommonRandom
    """Random numbers that do not depend on the number of processes."""
    whole: frozenset[str] = frozenset()
    """Tasks whose examples stay together, because their loss compares the examples of a step with each other."""

    def own_part(self, lengths: Sequence[int]) -> tuple[int, int, bool]:
        """Return the first of this process's items and the one after its last, given the tokens of each item.

        Also whether every process has items.
        """
        ends = equal_parts(lengths, self.processes.count)
        return ends[self.processes.rank], ends[self.processes.rank + 1], ends[-2] < ends[-1]


def equal_parts(lengths: Sequence[int], count: int) -> list[int]:
    """Divide a sequence of items into `count` consecutive parts whose sums of lengths are about equal.

    Returns the first item of each part, and the end. A part ends at the border that is nearest to its share of the
    total. If there are too few items for all parts, the last parts are empty.
    """
    borders = [0, *accumulate(lengths)]
    total, ends = borders[-1], [0]
    for number in range(1, count):
        nearest = _nearest(borders, number * total / count)
        if ends[-1] < nearest < len(lengths):
            ends.append(nearest)
    return ends + [len(lengths)] * (count + 1 - len(ends))


def _nearest(borders: Sequence[int], place: float) -> int:
    """Return the index of the border that is nearest to a place, the first one of several; borders ascend.

    By bisection, because every process does this for all parts of every step.
    """
    above = bisect_left(borders, place)
    if above == 0:
        return 0
    below = bisect_left(borders, borders[above - 1])
    return below if place - borders[below] <= borders[above] - place else above
