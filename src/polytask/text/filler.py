"""Filler sequences: how streams are filled up to one of few sizes, so that shapes repeat.

This exists only for speed: steps of equal shapes can be captured once and replayed. Knows numbers of tokens only.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from polytask.stream import MANY_TASKS

FILLER_LENGTH = 16  # filler sequences are short, because the cost of attention depends on the longest sequence
FEW_POSITIONS = np.arange(4096) % FILLER_LENGTH
MIN_CLASS = 64
"""The smallest number of tokens of a task in a stream of static shape."""
LARGE = 12
"""Above 2^12 tokens the size classes are closer to each other."""
SHORT = 128
"""Streams of static shape whose sequences are at most this long share one bound of the sequence length."""


def filler_lengths(room: int) -> list[int]:
    """The lengths of filler sequences that take `room` tokens together."""
    if room < 0:
        raise ValueError(f"the stream exceeds its token budget by {-room} tokens")
    full, rest = divmod(room, FILLER_LENGTH)
    return [FILLER_LENGTH] * full + ([rest] if rest else [])


def filler_positions(tokens: int) -> npt.NDArray[np.int64]:
    """The positions of the tokens of `filler_lengths`."""
    return FEW_POSITIONS[:tokens] if tokens <= len(FEW_POSITIONS) else np.arange(tokens) % FILLER_LENGTH


def size_class(tokens: int, tasks: int = 1) -> int:
    """Round a number of tokens up to the next of few sizes, so that shapes repeat and little is filled up.

    Neighbouring sizes differ by at most an eighth. Above 4,096 tokens they are closer, down to a 32nd: with more
    sequences, the number of tokens varies less from step to step, so few sizes occur anyway. With two tasks in a stream
    the sizes are twice as far from each other, with more tasks four times, because each combination of the tasks' sizes
    is a different shape.
    """
    spacing = _size_spacing(tokens, tasks)
    return max(MIN_CLASS, -(-tokens // spacing) * spacing)


def _size_spacing(tokens: int, tasks: int) -> int:
    if tokens <= MIN_CLASS:
        return MIN_CLASS
    bits = (tokens - 1).bit_length()
    closer = min(max(bits - LARGE, 0), 2)
    return 1 << bits - 5 - closer + min(tasks, 3)


def longest_class(length: int) -> int:
    """Round a sequence length up to one of few bounds."""
    return max(SHORT, 1 << (length - 1).bit_length())


class Room(NamedTuple):
    """The space of one task in a stream of static shape."""

    tokens: int
    fillers: int
    """The number of filler sequences, which does not depend on their lengths."""

    def filler_lengths(self, tokens: int) -> list[int]:
        """The lengths of the filler sequences if the task's own sequences have this many tokens; some may be 0."""
        lengths = filler_lengths(self.tokens - tokens)
        return lengths + [0] * (self.fillers - len(lengths))


class StaticShape(NamedTuple):
    """The shape of streams that are to be equal although they have different texts: those of a step's parts."""

    rooms: tuple[tuple[str, Room], ...]
    """The room of each task that packs sequences."""
    length_bound: int

    @classmethod
    def of(cls, tokens: Mapping[str, int], longest: int) -> "StaticShape":
        """The shape of streams whose tasks have at most this many tokens, and whose sequences have at most `longest`.

        Some may have far fewer, so each room has filler sequences for all its tokens.
        """
        sizes = [room.tokens for room in static_rooms([*tokens.values()])]
        rooms = [Room(size, -(-size // FILLER_LENGTH)) for size in sizes]
        return cls(tuple(zip(tokens, rooms, strict=True)), longest_class(max(longest, FILLER_LENGTH)))


def static_rooms(tokens: Sequence[int]) -> list[Room]:
    """The rooms of a stream's tasks, given the number of tokens of each."""
    if len(tokens) >= MANY_TASKS:
        size = size_class(max(tokens))
        return [Room(size, -(-size // FILLER_LENGTH))] * len(tokens)
    sizes = [size_class(n, len(tokens)) for n in tokens]
    return [Room(size, -(-(_size_spacing(size, len(tokens)) - 1) // FILLER_LENGTH)) for size in sizes]
