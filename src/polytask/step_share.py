"""Which part of a step a stream is, where several processes divide the step. Knows counts and shares, no stream."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from polytask.seeds import CommonRandom


@dataclass(frozen=True)
class StepShare:
    """Which part of a step a stream is, where several processes divide the step."""

    counts: Mapping[str, int]
    """The number of examples of each task in the whole step."""
    examples: Mapping[str, float]
    """For each task of the stream, the share of the task's examples in the step that the stream has. For tasks with an
    output for each word, the share of the words."""
    first_token: int
    """The place of the stream's first token in the stream of the whole step."""
    tokens: int
    """The number of tokens of the whole step."""
    random: CommonRandom
    """Draws the numbers that do not depend on the number of processes; each process must draw all of them."""
    taught: frozenset[str] = frozenset()
    """The tasks of the whole step that have a teacher."""
    everyone: bool = True
    """Whether every process has a part of the step. The first one always has."""
    num_examples: int = 0
    """The number of examples of the whole step; those that tasks share count once."""
    shape: Hashable = None
    """Equal for two steps of static shape if in every process their parts have equal shapes."""
