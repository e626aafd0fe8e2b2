"""Token ids of examples -> one packed stream. Knows ids and borders; knows no task's meaning and no file.

A single text is `[CLS] a [SEP]`; a pair is `[CLS] a [SEP] b [SEP]` in one sequence (segments 0 and 1), or two sequences
when each text is encoded by itself. A pair whose second text has no tokens stays a pair: `[CLS] a [SEP] [SEP]`. Texts
are cut to `max_length` here and nowhere else.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from polytask.stream import MANY_TASKS, Layout, Stream
from polytask.text.masking import Ids as Ids
from polytask.text.masking import MaskedText, Masker, token_labels

FILLER_LENGTH = 16  # filler is cut short, because attention's cost follows the longest sequence
MIN_CLASS = 64
"""The smallest number of tokens that a task has in a steady stream."""
LARGE = 12
"""Sizes beyond two to this many tokens lie closer."""
SHORT = 128
"""Steady streams whose sequences are no longer than this are not told apart by their longest one."""


@dataclass(frozen=True)
class Part:
    """Examples of one task on their way into a stream."""

    task: str
    texts: Sequence[tuple[Ids, ...]]
    """For each example the ids of its text or its two texts, without special tokens."""
    apart: bool = False
    """A pair's texts go into two sequences."""
    labels: npt.NDArray[np.generic] | None = None

    @classmethod
    def masked(cls, task: str, texts: Sequence[MaskedText]) -> "Part":
        """Single texts whose labels are their hidden tokens."""
        return cls(task, [(text.ids,) for text in texts], labels=token_labels(texts))


@dataclass(frozen=True)
class Packer:
    """Turns examples of several tasks into streams for a model with these tasks."""

    tasks: tuple[str, ...]
    cls_id: int
    sep_id: int
    max_length: int
    """Longest sequence, special tokens included; longer texts lose their end, the longer text of a pair first."""
    masker: Masker | None = None
    """Needed where a task's tokens are to be hidden."""

    @cached_property
    def _marks(self) -> tuple[Ids, Ids]:
        return np.array([self.cls_id]), np.array([self.sep_id])

    def masked(self, text: Ids, share: float, rng: np.random.Generator) -> MaskedText:
        """A single text, cut to fit, with `share` of its tokens hidden."""
        assert self.masker is not None, "this packer was made without a masker"
        return self.masker.mask(text[: self.max_length - 2], share, rng)

    def pack(self, parts: Sequence[Part], token_budget: int | None = None, static_shape: bool = False) -> Stream:
        """One stream, its sequences ordered by task; with a budget, filled up to exactly that many tokens.

        A steady one has the same shapes and ranges as every other with as many examples of the same tasks and about
        as many tokens of each: every task's sequences are followed by filler of its own, up to a `size_class`. Where
        there are many tasks, up to that of the largest.
        """
        ordered = sorted(parts, key=lambda part: self.tasks.index(part.task))
        assert len({part.task for part in ordered}) == len(ordered), "a task has one part in a stream"
        made = [[s for texts in part.texts for s in self.sequences(texts, part.apart)] for part in ordered]
        sizes = [[sum(map(len, own)) for own, _ in sequences] for sequences in made]
        rooms = steady_rooms([sum(own) for own in sizes]) if static_shape else [None] * len(made)
        pieces: list[Ids] = []
        lengths: list[int] = []
        second_starts: list[int] = []
        sequence_ranges, token_ranges = [(0, 0)] * len(self.tasks), [(0, 0)] * len(self.tasks)
        tokens = 0

        def fill(filler: Sequence[int]) -> None:
            pieces.append(np.zeros(sum(filler), dtype=np.int64))
            lengths.extend(filler)
            second_starts.extend(filler)

        for part, sequences, own_lengths, room in zip(ordered, made, sizes, rooms, strict=True):
            k, first, start = self.tasks.index(part.task), len(lengths), tokens
            for own, second_start in sequences:
                pieces += own
                second_starts.append(second_start)
            lengths += own_lengths
            sequence_ranges[k] = (first, len(lengths))
            tokens += sum(own_lengths)
            if room is not None:
                fill(room.filler(tokens - start))
                tokens = start + room.tokens
            token_ranges[k] = (start, tokens)
        if token_budget is not None:
            fill(filler_lengths(token_budget - tokens))
        labels = {p.task: torch.from_numpy(np.ascontiguousarray(p.labels)) for p in ordered if p.labels is not None}
        ends = np.cumsum(lengths)
        flat = np.concatenate(pieces, dtype=np.int64)
        positions = np.arange(len(flat)) - np.repeat(ends - lengths, lengths)
        segments = positions >= np.repeat(second_starts, lengths)
        return Stream(
            torch.from_numpy(flat),
            torch.from_numpy(positions),
            torch.from_numpy(segments.astype(np.int64)),
            Layout(
                cu_seqlens_S1=torch.from_numpy(np.concatenate([[0], ends]).astype(np.int32)),
                lengths=tuple(lengths),
                sequence_ranges=tuple(sequence_ranges),
                token_ranges=tuple(token_ranges),
                length_bound=longest_class(max(lengths)) if static_shape else None,
            ),
            labels,
        )

    def sequences(self, texts: tuple[Ids, ...], apart: bool) -> Iterator[tuple[list[Ids], int]]:
        """Each sequence of an example in pieces, special tokens among them, and where its second segment starts."""
        cls, sep = self._marks
        if len(texts) == 1 or apart:
            for text in texts:
                cut = text[: self.max_length - 2]
                yield [cls, cut, sep], len(cut) + 2
        else:
            a, b = cut_pair(texts[0], texts[1], self.max_length - 3)
            yield [cls, a, sep, b, sep], len(a) + 2

    def length(self, lengths: tuple[int, ...], apart: bool) -> int:
        """How many tokens of a stream an example with texts of these lengths takes."""
        if len(lengths) == 1 or apart:
            return sum(min(length, self.max_length - 2) + 2 for length in lengths)
        return min(sum(lengths), self.max_length - 3) + 3


def cut_pair(a: Ids, b: Ids, room: int) -> tuple[Ids, Ids]:
    """Both texts cut to `room` tokens together, as Hugging Face's `longest_first` does.

    The longer text is cut first. If both are cut and the room is odd, the longer text keeps the odd token; if they are
    equally long, the second one does.
    """
    if len(a) + len(b) <= room:
        return a, b
    shorter = min(len(a), len(b), room // 2)
    longer = room - shorter
    return (a[:longer], b[:shorter]) if len(a) > len(b) else (a[:shorter], b[:longer])


def filler_lengths(room: int) -> list[int]:
    """Lengths of dummy sequences that fill `room` tokens."""
    if room < 0:
        raise ValueError(f"the stream is {-room} tokens larger than its budget")
    full, rest = divmod(room, FILLER_LENGTH)
    return [FILLER_LENGTH] * full + ([rest] if rest else [])


def size_class(tokens: int, tasks: int = 1) -> int:
    """The next of sizes that lie at most an eighth apart, so that there are few of them and little is filled up.

    Beyond 4,096 tokens they lie closer, down to a 32nd: the more sequences, the less does their number of tokens differ
    from step to step, and what is met is few sizes all the same. With two tasks in a stream all lie twice as far apart,
    with more four times: every task's size counts for itself, and all combinations of them are different shapes.
    """
    apart = _apart(tokens, tasks)
    return max(MIN_CLASS, -(-tokens // apart) * apart)


def _apart(tokens: int, tasks: int) -> int:
    if tokens <= MIN_CLASS:
        return MIN_CLASS
    bits = (tokens - 1).bit_length()
    closer = min(max(bits - LARGE, 0), 2)
    return 1 << bits - 5 - closer + min(tasks, 3)


def longest_class(length: int) -> int:
    """An upper bound for the lengths of a steady stream's sequences: one of few."""
    return max(SHORT, 1 << (length - 1).bit_length())


class Room(NamedTuple):
    """What one task has of a steady stream."""

    tokens: int
    fillers: int
    """How many filler sequences there are, whatever their lengths."""

    def filler(self, tokens: int) -> list[int]:
        """Their lengths if the task's own sequences have so many tokens; the last may be 0."""
        lengths = filler_lengths(self.tokens - tokens)
        return lengths + [0] * (self.fillers - len(lengths))


def steady_rooms(tokens: Sequence[int]) -> list[Room]:
    """For the tasks of a stream, which have so many tokens each."""
    if len(tokens) >= MANY_TASKS:
        size = size_class(max(tokens))
        return [Room(size, -(-size // FILLER_LENGTH))] * len(tokens)
    sizes = [size_class(n, len(tokens)) for n in tokens]
    return [Room(size, -(-(_apart(size, len(tokens)) - 1) // FILLER_LENGTH)) for size in sizes]


def batches_by_length(lengths: Sequence[int], token_budget: int) -> Iterator[list[int]]:
    """Index lists that together hold every example once, similar lengths side by side, each inside the token budget."""
    batch: list[int] = []
    tokens = 0
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if batch and tokens + lengths[i] > token_budget:
            yield batch
            batch, tokens = [], 0
        batch.append(i)
        tokens += lengths[i]
    if batch:
        yield batch
