"""Token ids of examples -> one packed stream. Knows ids and sequence borders; knows no task's meaning and no file.

A single text is `[CLS] a [SEP]`; a pair is `[CLS] a [SEP] b [SEP]` in one sequence (segments 0 and 1), or two sequences
if each text is encoded separately, or all three. Three texts are `[CLS] a [SEP] b [SEP] c [SEP]` (segments 0, 1 and 1).
A pair whose second text has no tokens stays a pair: `[CLS] a [SEP] [SEP]`. A text with options is one pair for each
option. Other tokenizers have other special tokens (`PairForm`). Texts are truncated to `max_length` here and nowhere
else.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from polytask.kinds.tokens import with_width
from polytask.settings import Truncate, Windows
from polytask.stream import LENGTH_OF_MISSING, Layout, Reading, Stream
from polytask.text.filler import (
    Room,
    StaticShape,
    filler_lengths,
    filler_positions,
    longest_class,
    size_class,
    static_rooms,
)
from polytask.text.masking import Ids as Ids
from polytask.text.masking import MaskedText, Masker, masked_tokens, padded
from polytask.text.sequences import Sequences, joined_and_separate, make_sequences, truncate_text, truncate_texts
from polytask.text.templates import BERT_PAIR, PairForm
from polytask.text.texts import Texts
from polytask.text.windows import cut_windows, without_words

ANY_LENGTH = 2**62
"""A number of tokens that no text has."""


@dataclass(frozen=True)
class InputFormat:
    """How the examples of a task are turned into sequences: what its head asks for."""

    reading: Reading = "joined"
    """The sequences of an example with several texts."""
    copies: int = 1
    """How many times each example's texts are put into the stream."""
    mask_share: float | None = None
    """The share of the tokens that is masked; None: no masking."""
    stride: int | None = None
    """For heads with an output for each word: the tokens between the starts of two windows of a long text, 0 for half
    of the longest sequence. None: the output is that of the text."""
    windows: Windows | None = None
    """For heads with an output for a text: how a long text is cut into windows. None: it is truncated."""

    @property
    def has_windows(self) -> bool:
        return self.stride is not None or self.windows is not None

    def window_stride(self, size: int) -> int:
        """The stride of windows of `size` tokens."""
        if self.windows is not None:
            return self.windows.starts_after(size)
        assert self.stride is not None
        return min(self.stride, size) or max(1, size // 2)

    def room(self, size: int) -> int:
        """The most tokens of a text that are read, in sequences of `size` tokens without the special ones."""
        if self.stride is not None:
            return ANY_LENGTH
        return size if self.windows is None else self.windows.room(size)


@dataclass(frozen=True)
class Part:
    """Examples of one task that will be packed into a stream."""

    task: str
    texts: Sequence[tuple[Ids, ...]] | Texts | Sequences
    """For each example the ids of its texts, without special tokens; or the sequences of them."""
    reading: Reading = "joined"
    """The sequences of an example with several texts."""
    labels: npt.NDArray[np.generic] | None = None
    mask_share: float | None = None
    """The share of the tokens that is masked; the labels are then those of the masked tokens (`masked_tokens`)."""
    windows_M: npt.NDArray[np.int64] | None = None
    """If `texts` are windows: how many of them each text of each example has."""
    others: Mapping[str, npt.NDArray[np.generic]] = field(default_factory=dict)
    """Other tasks that read the same sequences, with their labels."""

    @classmethod
    def masked(cls, task: str, texts: Sequence[MaskedText], share: float) -> "Part":
        """Single texts whose labels are their masked tokens."""
        return cls(task, [(text.ids,) for text in texts], labels=masked_tokens(texts), mask_share=share)


class PackedBatch(NamedTuple):
    """Some examples of a task as a stream."""

    indices: npt.NDArray[np.int64]
    """Which examples they are. Of examples with several windows, which windows of all examples."""
    stream: Stream
    rows: npt.NDArray[np.int64] | None = None
    """The example of each window; None: examples have no windows."""


@dataclass(frozen=True)
class Packer:
    """Packs examples of several tasks into streams for a model with these tasks."""

    tasks: tuple[str, ...]
    cls_id: int
    sep_id: int
    max_length: int
    """Longest sequence, including special tokens. Longer texts are truncated, of several texts the longest first."""
    masker: Masker | None = None
    """Required if tokens of a task are to be masked."""
    tagged: bool = False
    """Whether streams have the tags of their tokens; a task without tags then has tag 0 everywhere."""
    pair: PairForm = BERT_PAIR
    """How several texts are put into one sequence."""
    truncate: Truncate = "end"
    """Which end of long texts is cut off. With error, whoever reads texts refuses those that are too long."""

    @property
    def cut_start(self) -> bool:
        return self.truncate == "start"

    @cached_property
    def _special_tokens(self) -> tuple[Ids, Ids]:
        return np.array([self.cls_id]), np.array([self.sep_id])

    def mask(self, text: Ids, share: float, rng: np.random.Generator) -> MaskedText:
        """Truncate a single text and mask `share` of its tokens."""
        assert self.masker is not None, "this packer has no masker"
        return self.masker.mask(truncate_text(text, self.max_length - 2, self.cut_start), share, rng)

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
            return self._masked_part(task, texts, form.mask_share, rngs)
        texts = texts if form.stride is not None else without_words(texts)
        if form.windows is not None:
            windows, windows_M = self.cut(texts, form)
            return Part(task, windows, labels=labels, windows_M=windows_M)
        return Part(task, texts.repeated(form.copies), form.reading, labels)

    def cut(self, texts: Texts, form: InputFormat) -> tuple[Texts, npt.NDArray[np.int64]]:
        """Cut each text into its windows, and return the number of windows of each text of each example."""
        size = self.max_length - 2
        single = texts.separate().truncated(form.room(size), self.cut_start)
        parts, rows_S = cut_windows(single, size, form.window_stride(size))
        return parts, np.bincount(rows_S, minlength=len(single))

    def _masked_part(self, task: str, texts: Texts, share: float, rngs: Iterable[np.random.Generator]) -> Part:
        """The part that `mask` and `Part.masked` make of single texts."""
        assert self.masker is not None, "this packer has no masker"
        texts = texts.concatenated(self.max_length - 2, self.cut_start)
        lengths_N = texts.lengths_NW.squeeze(1)
        masked, places = self.masker.mask_many(texts.ids, lengths_N, share, rngs)
        # In front of the n-th text, counted from 0, there are n + 1 [CLS] and n [SEP].
        added = 2 * np.searchsorted(lengths_N.cumsum(), places, side="right") + 1
        labels = np.stack([places + added, texts.ids[places]])
        return Part(task, replace(texts, ids=masked), labels=labels, mask_share=share)

    def pack(
        self, parts: Sequence[Part], token_budget: int | None = None, static_shape: bool | StaticShape = False
    ) -> Stream:
        """Pack the parts into one stream, its sequences ordered by task; filled up to `token_budget` tokens if given.

        A stream of static shape has the same shapes and ranges as every other one with the same number of examples of
        the same tasks and about the same number of tokens: each task's sequences are followed by filler up to a
        `size_class`. If there are many tasks, all use the size class of the largest. A given shape is used as it is.
        """
        ordered = sorted(parts, key=lambda part: self.tasks.index(part.task))
        assert len({part.task for part in ordered}) == len(ordered), "a task has one part in a stream"
        sequences = [self.sequences_of(part) for part in ordered]
        shape = static_shape if isinstance(static_shape, StaticShape) else None
        if shape is not None:
            rooms: Sequence[Room | None] = [dict(shape.rooms)[part.task] for part in ordered]
        else:
            rooms = static_rooms([own.tokens for own in sequences]) if static_shape else [None] * len(ordered)
        sequence_ranges, token_ranges = [(0, 0)] * len(self.tasks), [(0, 0)] * len(self.tasks)
        lengths: list[int] = []
        starts, end = [], 0
        for part, own, room in zip(ordered, sequences, rooms, strict=True):
            tasks, first, start = [self.tasks.index(task) for task in (part.task, *part.others)], len(lengths), end
            lengths += own.lengths
            for k in tasks:
                sequence_ranges[k] = (first, first + len(own.lengths))
            if room is not None:
                lengths += room.filler_lengths(own.tokens)
            end = start + (own.tokens if room is None else room.tokens)
            for k in tasks:
                token_ranges[k] = (start, end)
            starts.append(start)
        if token_budget is not None:
            lengths += filler_lengths(token_budget - end)
            end = token_budget
        bound = longest_class(max(lengths)) if static_shape else None
        bound = bound if shape is None else shape.length_bound
        layout = Layout(
            cu_seqlens_S1=torch.from_numpy(np.array([*accumulate(lengths, initial=0)], dtype=np.int32)),
            lengths=tuple(lengths),
            sequence_ranges=tuple(sequence_ranges),
            token_ranges=tuple(token_ranges),
            length_bound=bound,
            options=self._options(ordered, sequences),
        )
        width = None if layout.length_bound is None else layout.length_bound - 2
        words = {
            part.task: torch.from_numpy(own.word_places(width))
            for part, own in zip(ordered, sequences, strict=True)
            if own.words_T is not None
        }
        labels = self._label_tensors(ordered, rooms, words, shape is not None)
        windows = _window_tensors(ordered, sequences)
        ids_T, positions_T, segments_T = _tokens(sequences, starts, end)
        tags_T = _tags(sequences, starts, end) if self.tagged else None
        return Stream(ids_T, positions_T, segments_T, layout, labels, tag_ids_T=tags_T, words=words, windows=windows)

    def _options(self, parts: Sequence[Part], sequences: Sequence[Sequences]) -> tuple[int, ...]:
        """The number of options of each task, for the layout of a stream with the sequences of these parts."""
        options = {part.task: own.options for part, own in zip(parts, sequences, strict=True)}
        return tuple(options.get(task, 1) for task in self.tasks) if max(options.values(), default=1) > 1 else ()

    def sequences_of(self, part: Part) -> Sequences:
        """The sequences of all examples of a part."""
        if isinstance(part.texts, Sequences):
            return part.texts
        special_ids = self.cls_id, self.sep_id
        cut = self.pair, self.cut_start
        sequences = make_sequences(Texts.of(part.texts), part.reading, special_ids, self.max_length, *cut)
        return sequences if part.windows_M is None else replace(sequences, windows_M=part.windows_M)

    def _label_tensors(
        self, parts: Sequence[Part], rooms: Sequence[Room | None], words: Mapping[str, Tensor], given_shape: bool
    ) -> dict[str, Tensor]:
        """The labels of each task; those of words are as wide as the places of the words."""
        labels = {
            part.task: torch.from_numpy(np.ascontiguousarray(self._labels(part, room, given_shape)))
            for part, room in zip(parts, rooms, strict=True)
            if part.labels is not None
        }
        for part in parts:
            labels |= {task: torch.from_numpy(np.ascontiguousarray(own)) for task, own in part.others.items()}
        labels |= {task: with_width(labels[task], places.shape[1]) for task, places in words.items() if task in labels}
        return labels

    def _labels(self, part: Part, room: Room | None, given_shape: bool) -> npt.NDArray[np.generic]:
        """The labels of a part. In a stream of static shape the number of masked tokens is static too: those that are
        missing are filled up. In a given shape there is room for as many as any texts can have."""
        assert part.labels is not None
        if part.mask_share is None or room is None:
            return part.labels
        chosen = part.labels.shape[1]
        if given_shape:
            return padded(part.labels, math.ceil(part.mask_share * room.tokens + len(part.texts)))
        usual = math.ceil(part.mask_share * room.tokens + len(part.texts) / 2)  # each text's share is rounded
        return padded(part.labels, usual if chosen <= usual else size_class(chosen))

    def sequences(self, texts: tuple[Ids, ...], reading: Reading) -> Iterator[tuple[list[Ids], int]]:
        """Yield each sequence of an example as a list of pieces, and the position where its second segment starts."""
        cls, sep = self._special_tokens
        if reading == "options":
            for option in texts[1:]:  # a missing option has no tokens
                yield from self.sequences((texts[0], option), "joined") if len(option) else [([cls, sep], 2)]
            return
        joined, separate = joined_and_separate(reading, len(texts))
        if joined:
            room = self.max_length - self.pair.special_tokens(len(texts))
            first, *others = truncate_texts(texts, room, self.cut_start)
            between = [sep] * self.pair.separators
            pieces = [cls, first, *(piece for text in others for piece in (*between, text)), sep]
            yield pieces, len(first) + 2 if self.pair.second_segment else sum(map(len, pieces))
        for text in texts if separate else ():
            truncated = truncate_text(text, self.max_length - 2, self.cut_start)
            yield [cls, truncated, sep], len(truncated) + 2

    def lengths(self, lengths_NW: npt.NDArray[np.integer], form: InputFormat) -> npt.NDArray[np.int64]:
        """The number of tokens that each example takes in a stream, given the number of tokens of its texts."""
        if form.reading == "options":
            total_N: npt.NDArray[np.int64] = np.minimum(self._option_lengths(lengths_NW), self.max_length).sum(1)
            return total_N
        if form.windows is not None:
            kept_NW = np.minimum(lengths_NW, form.room(self.max_length - 2)).astype(np.int64) + 2
            windows_NW = self.window_counts(lengths_NW, form)
            tokens_N: npt.NDArray[np.int64] = np.where(windows_NW > 1, windows_NW * self.max_length, kept_NW).sum(1)
            return tokens_N
        joined, separate = joined_and_separate(form.reading, lengths_NW.shape[1])
        lengths_N = np.zeros(len(lengths_NW), dtype=np.int64)
        if joined:
            special = self.pair.special_tokens(lengths_NW.shape[1])
            lengths_N += np.minimum(lengths_NW.sum(1), self.max_length - special) + special
        if separate:
            lengths_N += (np.minimum(lengths_NW, self.max_length - 2) + 2).sum(1) * form.copies
        return lengths_N

    def window_counts(self, lengths_NW: npt.NDArray[np.integer], form: InputFormat) -> npt.NDArray[np.int64]:
        """The number of windows of each text, given its number of tokens: 1 if it fits into one sequence."""
        if not form.has_windows:
            return np.ones(lengths_NW.shape, dtype=np.int64)
        size = self.max_length - 2
        behind_NW = np.minimum(lengths_NW.astype(np.int64), form.room(size)) - size
        counts_NW: npt.NDArray[np.int64] = 1 + np.maximum(-(-behind_NW // form.window_stride(size)), 0)
        return counts_NW

    def longest(self, form: InputFormat) -> int:
        """The greatest of the `full_lengths` that is not truncated."""
        return form.room(self.max_length - 2) + 2

    def full_lengths(self, lengths_NW: npt.NDArray[np.integer], reading: Reading) -> npt.NDArray[np.int64]:
        """The number of tokens of each example's longest sequence before truncation, with special tokens.

        Those of all windows of a text count as one sequence. An example is truncated if it is greater than `longest`.
        """
        tokens_NW = lengths_NW.astype(np.int64)
        joined, _ = joined_and_separate(reading, lengths_NW.shape[1])
        longest_N: npt.NDArray[np.int64] = tokens_NW.max(1, initial=0) + 2
        if reading == "options":
            longest_N = self._option_lengths(tokens_NW).max(1, initial=0)
        elif joined:
            longest_N = tokens_NW.sum(1) + self.pair.special_tokens(lengths_NW.shape[1])
        return longest_N

    def _option_lengths(self, lengths_NW: npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
        """The number of tokens of the sequence of each option before truncation: [N, M]."""
        text_N1, option_NM = lengths_NW[:, :1].astype(np.int64), lengths_NW[:, 1:].astype(np.int64)
        return np.where(option_NM > 0, text_N1 + option_NM + self.pair.special_tokens(2), LENGTH_OF_MISSING)


def _window_tensors(parts: Sequence[Part], sequences: Sequence[Sequences]) -> dict[str, Tensor]:
    """The first sequence of each text, and the end, for the tasks with texts that have several windows."""
    windows: dict[str, Tensor] = {}
    for part, own in zip(parts, sequences, strict=True):
        if own.windows_M is not None and own.windows_M.max(initial=1) > 1:
            windows |= dict.fromkeys([part.task, *part.others], torch.from_numpy(own.starts_of_texts))
    return windows


def _tokens(sequences: Sequence[Sequences], starts: Sequence[int], tokens: int) -> Iterator[Tensor]:
    """The ids, positions and segments of a stream; `starts` are the first tokens of the tasks, all else is filler."""
    ids_T, segments_T = np.zeros(tokens, dtype=np.int64), np.zeros(tokens, dtype=np.int64)
    positions_T = np.empty(tokens, dtype=np.int64)
    for own, start, next_start in zip(sequences, starts, [*starts[1:], tokens], strict=True):
        end = start + own.tokens
        ids_T[start:end] = own.ids_T
        positions_T[start:end] = own.positions_T
        if own.segments_T is not None:
            segments_T[start:end] = own.segments_T
        if end < next_start:
            positions_T[end:next_start] = filler_positions(next_start - end)
    return map(torch.from_numpy, (ids_T, positions_T, segments_T))


def _tags(sequences: Sequence[Sequences], starts: Sequence[int], tokens: int) -> Tensor:
    tags_T = np.zeros(tokens, dtype=np.int64)
    for own, start in zip(sequences, starts, strict=True):
        if own.tags_T is not None:
            tags_T[start : start + own.tokens] = own.tags_T
    return torch.from_numpy(tags_T)


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
