"""Token ids of examples -> one packed stream. Knows ids and sequence borders; knows no task's meaning and no file.

A single text is `[CLS] a [SEP]`; a pair is `[CLS] a [SEP] b [SEP]` in one sequence (segments 0 and 1), or two sequences
if each text is encoded separately. A pair whose second text has no tokens stays a pair: `[CLS] a [SEP] [SEP]`. Texts
are truncated to `max_length` here and nowhere else.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from polytask.stream import Layout, Stream
from polytask.text.filler import FILLER_LENGTH, Room, filler_lengths, longest_class, size_class, static_rooms
from polytask.text.masking import Ids as Ids
from polytask.text.masking import MaskedText, Masker, masked_tokens, padded
from polytask.text.texts import Texts


@dataclass(frozen=True)
class InputFormat:
    """How the examples of a task are turned into sequences: what its head asks for."""

    separate_texts: bool = False
    """The two texts of a pair become two sequences."""
    copies: int = 1
    """How many times each example's texts are put into the stream."""
    mask_share: float | None = None
    """The share of the tokens that is masked; None: no masking."""


@dataclass(frozen=True)
class Part:
    """Examples of one task that will be packed into a stream."""

    task: str
    texts: Sequence[tuple[Ids, ...]] | Texts
    """For each example the ids of its text or its two texts, without special tokens."""
    separate_texts: bool = False
    """The two texts of a pair become two sequences."""
    labels: npt.NDArray[np.generic] | None = None
    mask_share: float | None = None
    """The share of the tokens that is masked; the labels are then those of the masked tokens (`masked_tokens`)."""

    @classmethod
    def masked(cls, task: str, texts: Sequence[MaskedText], share: float) -> "Part":
        """Single texts whose labels are their masked tokens."""
        return cls(task, [(text.ids,) for text in texts], labels=masked_tokens(texts), mask_share=share)


class PackedBatch(NamedTuple):
    """Some examples of a task as a stream."""

    indices: npt.NDArray[np.int64]
    """Which examples they are."""
    stream: Stream


@dataclass(frozen=True)
class Packer:
    """Packs examples of several tasks into streams for a model with these tasks."""

    tasks: tuple[str, ...]
    cls_id: int
    sep_id: int
    max_length: int
    """Longest sequence, including special tokens. Longer texts lose their end, in a pair the longer text first."""
    masker: Masker | None = None
    """Required if tokens of a task are to be masked."""

    @cached_property
    def _special_tokens(self) -> tuple[Ids, Ids]:
        return np.array([self.cls_id]), np.array([self.sep_id])

    def mask(self, text: Ids, share: float, rng: np.random.Generator) -> MaskedText:
        """Truncate a single text and mask `share` of its tokens."""
        assert self.masker is not None, "this packer has no masker"
        return self.masker.mask(text[: self.max_length - 2], share, rng)

    def part(
        self,
        task: str,
        texts: Sequence[tuple[Ids, ...]] | Texts,
        form: InputFormat,
        labels: npt.NDArray[np.generic] | None = None,
        rngs: Iterable[np.random.Generator] = (),
    ) -> Part:
        """Put examples into the format that the task's head asks for. Masking uses one generator per example."""
        texts = Texts.of(texts)
        if form.mask_share is not None:
            masked = [self.mask(text[0], form.mask_share, rng) for text, rng in zip(texts, rngs, strict=True)]
            return Part.masked(task, masked, form.mask_share)
        return Part(task, texts.repeated(form.copies), form.separate_texts, labels)

    def pack(self, parts: Sequence[Part], token_budget: int | None = None, static_shape: bool = False) -> Stream:
        """Pack the parts into one stream, its sequences ordered by task; filled up to `token_budget` tokens if given.

        A stream of static shape has the same shapes and ranges as every other one with the same number of examples of
        the same tasks and about the same number of tokens: each task's sequences are followed by filler up to a
        `size_class`. If there are many tasks, all use the size class of the largest.
        """
        ordered = sorted(parts, key=lambda part: self.tasks.index(part.task))
        assert len({part.task for part in ordered}) == len(ordered), "a task has one part in a stream"
        sequences = [self._sequences(part) for part in ordered]
        rooms = static_rooms([own.tokens for own in sequences]) if static_shape else [None] * len(ordered)
        sequence_ranges, token_ranges = [(0, 0)] * len(self.tasks), [(0, 0)] * len(self.tasks)
        lengths: list[int] = []
        end = 0
        for part, own, room in zip(ordered, sequences, rooms, strict=True):
            k, first, start = self.tasks.index(part.task), len(lengths), end
            lengths += own.lengths_S.tolist()
            end += own.tokens
            sequence_ranges[k] = (first, len(lengths))
            if room is not None:
                lengths += room.filler_lengths(own.tokens)
                end = start + room.tokens
            token_ranges[k] = (start, end)
        if token_budget is not None:
            lengths += filler_lengths(token_budget - end)
            end = token_budget
        starts = [token_ranges[self.tasks.index(part.task)][0] for part in ordered]
        cu_seqlens = np.zeros(len(lengths) + 1, dtype=np.int32)
        np.cumsum(np.array(lengths, dtype=np.int64), dtype=np.int32, out=cu_seqlens[1:])
        layout = Layout(
            cu_seqlens_S1=torch.from_numpy(cu_seqlens),
            lengths=tuple(lengths),
            sequence_ranges=tuple(sequence_ranges),
            token_ranges=tuple(token_ranges),
            length_bound=longest_class(max(lengths)) if static_shape else None,
        )
        labels = {
            part.task: torch.from_numpy(np.ascontiguousarray(self._labels(part, room)))
            for part, room in zip(ordered, rooms, strict=True)
            if part.labels is not None
        }
        ids, positions, segments = map(torch.from_numpy, self._tokens(sequences, starts, end))
        return Stream(ids, positions, segments, layout, labels)

    def _tokens(
        self, sequences: Sequence["_Sequences"], starts: Sequence[int], tokens: int
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """The ids, positions and segments of a stream in which each task's sequences start at the given token."""
        ids = np.zeros(tokens, dtype=np.int64)
        segments = np.zeros(tokens, dtype=np.int64)
        positions = np.empty(tokens, dtype=np.int64)
        filled = 0
        for own, start in zip(sequences, starts, strict=True):
            positions[filled:start] = _filler_positions(start - filled)
            filled = start + own.tokens
            own.write_ids(ids[start:filled], self.cls_id, self.sep_id)
            own.write_positions(positions[start:filled], segments[start:filled])
        positions[filled:] = _filler_positions(tokens - filled)
        return ids, positions, segments

    def _labels(self, part: Part, room: Room | None) -> npt.NDArray[np.generic]:
        """The labels of a part. In a stream of static shape the number of masked tokens is static too: those that are
        missing are filled up."""
        assert part.labels is not None
        if part.mask_share is None or room is None:
            return part.labels
        chosen = part.labels.shape[1]
        usual = math.ceil(part.mask_share * room.tokens + len(part.texts) / 2)  # each text's share is rounded
        return padded(part.labels, usual if chosen <= usual else size_class(chosen))

    def sequences(self, texts: tuple[Ids, ...], separate_texts: bool) -> Iterator[tuple[list[Ids], int]]:
        """Yield each sequence of an example as a list of pieces, and the position where its second segment starts."""
        cls, sep = self._special_tokens
        if len(texts) == 1 or separate_texts:
            for text in texts:
                truncated = text[: self.max_length - 2]
                yield [cls, truncated, sep], len(truncated) + 2
        else:
            a, b = truncate_pair(texts[0], texts[1], self.max_length - 3)
            yield [cls, a, sep, b, sep], len(a) + 2

    def _sequences(self, part: Part) -> "_Sequences":
        texts = Texts.of(part.texts)
        starts_NW, lengths_NW = texts.starts_NW, texts.lengths_NW
        if _joined(texts, part.separate_texts):
            lengths_NW = _truncate_pairs(lengths_NW, self.max_length - 3)
            return _Sequences(texts.ids, (starts_NW - [1, 0]).ravel(), (lengths_NW + [2, 1]).ravel(), pieces=2)
        lengths_NW = np.minimum(lengths_NW, self.max_length - 2)
        return _Sequences(texts.ids, starts_NW.ravel() - 1, lengths_NW.ravel() + 2, pieces=1)

    def lengths(self, texts: Sequence[tuple[Ids, ...]] | Texts, form: InputFormat) -> npt.NDArray[np.int64]:
        """The number of tokens that each example takes in a stream."""
        texts = Texts.of(texts)
        lengths_NW = texts.lengths_NW
        lengths_N: npt.NDArray[np.int64]
        if _joined(texts, form.separate_texts):
            lengths_N = np.minimum(lengths_NW.sum(1), self.max_length - 3) + 3
        else:
            lengths_N = (np.minimum(lengths_NW, self.max_length - 2) + 2).sum(1) * form.copies
        return lengths_N

    def length(self, lengths: tuple[int, ...], separate_texts: bool) -> int:
        """The number of tokens that an example with texts of these lengths takes in a stream."""
        if len(lengths) == 1 or separate_texts:
            return sum(min(length, self.max_length - 2) + 2 for length in lengths)
        return min(sum(lengths), self.max_length - 3) + 3


class _Sequences:
    """The sequences of one task in a stream, as pieces: a text and the special tokens around it.

    Each piece ends with a separator. Pieces are copied from the array of the texts together with the tokens before and
    behind them, which are then overwritten by special tokens.
    """

    def __init__(
        self, texts: Ids, sources_P: npt.NDArray[np.int64], lengths_P: npt.NDArray[np.int64], pieces: int
    ) -> None:
        self.texts = texts
        self.sources_P = sources_P
        """Where each piece comes from; may be one token before or behind the array."""
        self.lengths_P = lengths_P
        self.pieces = pieces
        """Of each sequence: 2 for a pair in one sequence."""
        self.ends_P = lengths_P.cumsum()
        self.tokens = int(self.ends_P[-1]) if len(lengths_P) else 0
        self.lengths_S = lengths_P if pieces == 1 else lengths_P[::2] + lengths_P[1::2]

    def write_ids(self, ids_T: npt.NDArray[np.int64], cls_id: int, sep_id: int) -> None:
        starts_P = self.ends_P - self.lengths_P
        source_T = (self.sources_P - starts_P).repeat(self.lengths_P)
        source_T += np.arange(self.tokens)
        if len(self.texts):
            ids_T[:] = self.texts.take(source_T, mode="clip")
        ids_T[self.ends_P - 1] = sep_id
        ids_T[starts_P[:: self.pieces]] = cls_id

    def write_positions(self, positions_T: npt.NDArray[np.int64], segments_T: npt.NDArray[np.int64]) -> None:
        starts_S = self.ends_P[self.pieces - 1 :: self.pieces] - self.lengths_S
        np.subtract(np.arange(self.tokens), starts_S.repeat(self.lengths_S), out=positions_T)
        if self.pieces == 2:
            segments_T[:] = np.tile([0, 1], len(self.lengths_S)).repeat(self.lengths_P)


def _joined(texts: Texts, separate_texts: bool) -> bool:
    """Whether both texts of an example are in one sequence."""
    return not separate_texts and texts.lengths_NW.shape[1] == 2


def _filler_positions(tokens: int) -> npt.NDArray[np.int64]:
    """The positions in filler sequences with this many tokens."""
    return np.arange(tokens) % FILLER_LENGTH


def _truncate_pairs(lengths_N2: npt.NDArray[np.int64], room: int) -> npt.NDArray[np.int64]:
    """The lengths of the texts of pairs after `truncate_pair`."""
    a_N, b_N = lengths_N2.T
    too_long_N = a_N + b_N > room
    if not too_long_N.any():
        return lengths_N2
    shorter_N = np.minimum(np.minimum(a_N, b_N), room // 2)
    first_longer_N = a_N > b_N
    first_N = np.where(first_longer_N, room - shorter_N, shorter_N)
    truncated_N2 = np.stack([first_N, room - first_N], 1)
    return np.where(too_long_N[:, None], truncated_N2, lengths_N2)


def truncate_pair(a: Ids, b: Ids, room: int) -> tuple[Ids, Ids]:
    """Truncate two texts to `room` tokens together, as Hugging Face's `longest_first` does.

    The longer text is truncated first. If both are truncated and `room` is odd, the longer text keeps the odd token; if
    they are equally long, the second one does.
    """
    if len(a) + len(b) <= room:
        return a, b
    shorter = min(len(a), len(b), room // 2)
    longer = room - shorter
    return (a[:longer], b[:shorter]) if len(a) > len(b) else (a[:shorter], b[:longer])


def batches_by_length(lengths: npt.ArrayLike, token_budget: int) -> Iterator[npt.NDArray[np.int64]]:
    """Yield arrays of indices that together contain every example once, longest first, each within the budget."""
    lengths_N = np.asarray(lengths, dtype=np.int64)
    order_N = np.argsort(-lengths_N, kind="stable")
    ends_N = np.cumsum(lengths_N[order_N])
    first = 0
    while first < len(order_N):
        used = ends_N[first - 1] if first else 0
        last = max(first + 1, int(np.searchsorted(ends_N, used + token_budget, side="right")))
        yield order_N[first:last]
        first = last
