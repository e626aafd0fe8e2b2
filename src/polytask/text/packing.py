"""Token ids of examples -> one packed stream. Knows ids and sequence borders; knows no task's meaning and no file.

A single text is `[CLS] a [SEP]`; a pair is `[CLS] a [SEP] b [SEP]` in one sequence (segments 0 and 1), or two sequences
if each text is encoded separately. A pair whose second text has no tokens stays a pair: `[CLS] a [SEP] [SEP]`. Texts
are truncated to `max_length` here and nowhere else.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from polytask.stream import Layout, Stream
from polytask.text.filler import Room, filler_lengths, longest_class, size_class, static_rooms
from polytask.text.masking import Ids as Ids
from polytask.text.masking import MaskedText, Masker, masked_tokens, padded


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
    texts: Sequence[tuple[Ids, ...]]
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
        texts: Sequence[tuple[Ids, ...]],
        form: InputFormat,
        labels: npt.NDArray[np.generic] | None = None,
        rngs: Iterable[np.random.Generator] = (),
    ) -> Part:
        """Put examples into the format that the task's head asks for. Masking uses one generator per example."""
        if form.mask_share is not None:
            masked = [self.mask(text[0], form.mask_share, rng) for text, rng in zip(texts, rngs, strict=True)]
            return Part.masked(task, masked, form.mask_share)
        return Part(task, [text * form.copies for text in texts], form.separate_texts, labels)

    def pack(self, parts: Sequence[Part], token_budget: int | None = None, static_shape: bool = False) -> Stream:
        """Pack the parts into one stream, its sequences ordered by task; filled up to `token_budget` tokens if given.

        A stream of static shape has the same shapes and ranges as every other one with the same number of examples of
        the same tasks and about the same number of tokens: each task's sequences are followed by filler up to a
        `size_class`. If there are many tasks, all use the size class of the largest.
        """
        ordered = sorted(parts, key=lambda part: self.tasks.index(part.task))
        assert len({part.task for part in ordered}) == len(ordered), "a task has one part in a stream"
        sequences = [self._sequences(part) for part in ordered]
        rooms = static_rooms([len(own.ids) for own in sequences]) if static_shape else [None] * len(ordered)
        sequence_ranges, token_ranges = [(0, 0)] * len(self.tasks), [(0, 0)] * len(self.tasks)
        rows = _Rows()
        for part, own, room in zip(ordered, sequences, rooms, strict=True):
            k, first, start = self.tasks.index(part.task), rows.count, rows.tokens
            rows.add(own)
            sequence_ranges[k] = (first, rows.count)
            if room is not None:
                rows.add_filler(room.filler_lengths(rows.tokens - start))
            token_ranges[k] = (start, rows.tokens)
        if token_budget is not None:
            rows.add_filler(filler_lengths(token_budget - rows.tokens))
        ids, lengths, second_starts = rows.joined()
        ends, positions = np.cumsum(lengths), _places(lengths)
        segments = (positions >= np.repeat(second_starts, lengths)).astype(np.int64)
        layout = Layout(
            cu_seqlens_S1=torch.from_numpy(np.concatenate([[0], ends]).astype(np.int32)),
            lengths=tuple(lengths.tolist()),
            sequence_ranges=tuple(sequence_ranges),
            token_ranges=tuple(token_ranges),
            length_bound=longest_class(int(lengths.max())) if static_shape else None,
        )
        labels = {
            part.task: torch.from_numpy(np.ascontiguousarray(self._labels(part, room)))
            for part, room in zip(ordered, rooms, strict=True)
            if part.labels is not None
        }
        token_ids_T, position_ids_T, segment_ids_T = map(torch.from_numpy, (ids, positions, segments))
        return Stream(token_ids_T, position_ids_T, segment_ids_T, layout, labels)

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
        """The sequences of all examples of a part, with few operations however many examples there are."""
        texts, lengths_NW = part.texts, _lengths(part.texts)
        joined = _joined(texts, part.separate_texts)
        if joined and lengths_NW.sum(1).max() > self.max_length - 3:
            texts = [truncate_pair(a, b, self.max_length - 3) for a, b in texts]
            lengths_NW = _lengths(texts)
        elif not joined and lengths_NW.max(initial=0) > self.max_length - 2:
            texts = [tuple(text[: self.max_length - 2] for text in example) for example in texts]
            lengths_NW = _lengths(texts)
        # Pieces of one type are concatenated several times faster.
        dtype = texts[0][0].dtype if texts else np.int64
        cls, sep = (token.astype(dtype) for token in self._special_tokens)
        if joined:
            pieces = [piece for a, b in texts for piece in (cls, a, sep, b, sep)]
            lengths_S, second_starts_S = lengths_NW.sum(1) + 3, lengths_NW[:, 0] + 2
        else:
            pieces = [piece for example in texts for text in example for piece in (cls, text, sep)]
            lengths_S = second_starts_S = lengths_NW.ravel() + 2
        return _Sequences(np.concatenate(pieces or [cls[:0]]), lengths_S, second_starts_S)

    def lengths(self, texts: Sequence[tuple[Ids, ...]], form: InputFormat) -> npt.NDArray[np.int64]:
        """The number of tokens that each example takes in a stream."""
        lengths_NW = _lengths(texts)
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


class _Sequences(NamedTuple):
    """The sequences of one task in a stream."""

    ids: Ids
    """The ids of all of them, including special tokens."""
    lengths: npt.NDArray[np.int64]
    second_starts: npt.NDArray[np.int64]
    """For each sequence the position at which its second segment starts; its length if it has none."""


@dataclass
class _Rows:
    """The sequences of a stream while it is packed."""

    parts: list[_Sequences] = field(default_factory=list)
    count: int = 0
    tokens: int = 0

    def add(self, sequences: _Sequences) -> None:
        self.parts.append(sequences)
        self.count += len(sequences.lengths)
        self.tokens += len(sequences.ids)

    def add_filler(self, lengths: Sequence[int]) -> None:
        filler = np.array(lengths, dtype=np.int64)
        self.add(_Sequences(np.zeros(filler.sum(), dtype=np.int64), filler, filler))

    def joined(self) -> _Sequences:
        return _Sequences(*(np.concatenate(arrays, dtype=np.int64) for arrays in zip(*self.parts, strict=True)))


def _joined(texts: Sequence[tuple[Ids, ...]], separate_texts: bool) -> bool:
    """Whether both texts of an example are in one sequence."""
    return not separate_texts and len(texts) > 0 and len(texts[0]) == 2


def _lengths(texts: Sequence[tuple[Ids, ...]]) -> npt.NDArray[np.int64]:
    """The number of tokens of each text: [N, texts of an example]."""
    flat = [len(text) for example in texts for text in example]
    width = len(texts[0]) if texts else 1
    assert len(flat) == width * len(texts), "examples of one task must have the same number of texts"
    return np.array(flat, dtype=np.int64).reshape(-1, width)


def _places(lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """For rows of these lengths, one after another: the place of each element in its row."""
    places: npt.NDArray[np.int64] = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return places


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
