"""How the examples of a step are divided among processes: each gets a consecutive part of the step's stream.

The parts have about the same number of tokens. In steps that are captured, examples are dealt instead: the parts are
not consecutive, but their shapes repeat. Whatever needs the whole step is in the `StepShare` of a part: it says which
share of the step the part is. Knows numbers of tokens; knows no text and no model.
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

    def hands(self, lengths: Sequence[int], turn: int, whole: bool) -> list[list[int]]:
        """Deal the items of the `turn`-th source of a step to the processes; if `whole`, all to one of them."""
        count = self.processes.count
        if whole:
            return [list(range(len(lengths))) if rank == turn % count else [] for rank in range(count)]
        return deal(lengths, count, turn)


def deal(lengths: Sequence[int], count: int, first: int = 0) -> list[list[int]]:
    """Deal items to `count` hands, the longest first, in turns that go forth and back.

    The hands have about the same sum of lengths, and how many items a hand has does not depend on the lengths, so that
    shapes repeat from step to step. `first` is the hand that is dealt to first.
    """
    hands: list[list[int]] = [[] for _ in range(count)]
    for place, item in enumerate(sorted(range(len(lengths)), key=lambda item: -lengths[item])):
        turn, seat = divmod(place, count)
        hands[(first + (count - 1 - seat if turn % 2 else seat)) % count].append(item)
    return [sorted(hand) for hand in hands]


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
