"""Texts with their special tokens, one sequence after another, truncated to a maximum length. Knows ids only.

A whole batch, or a whole stretch of training examples, takes as many operations as a single example.
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from polytask.stream import Reading
from polytask.text.masking import Ids
from polytask.text.templates import BERT_PAIR, PairForm
from polytask.text.texts import Texts


@dataclass(frozen=True)
class Sequences:
    """Sequences of one task, without filler."""

    ids_T: Ids
    positions_T: Ids
    segments_T: Ids | None
    """None if all are 0."""
    lengths: list[int]
    tags_T: Ids | None = None
    """None if there are no tags."""
    words_T: Ids | None = None
    """Not 0 for the first token of a word that has an output; None if words have no outputs."""
    options: int = 1
    """How many options an example has, each of which is a sequence; 1 for examples without options."""
    windows_M: npt.NDArray[np.int64] | None = None
    """How many sequences are the windows of each text; None: every text is one sequence."""

    @property
    def tokens(self) -> int:
        return len(self.ids_T)

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def num_texts(self) -> int:
        """The number of sequences, of which the windows of a text count as one."""
        return len(self) if self.windows_M is None else len(self.windows_M)

    @cached_property
    def starts_of_texts(self) -> npt.NDArray[np.int64]:
        """The first sequence of each text, and the end."""
        assert self.windows_M is not None
        return np.concatenate([[0], self.windows_M.cumsum()])

    def slice(self, first: int, last: int) -> "Sequences":
        """The sequences from `first` to before `last`, which are not copied; the windows of a text count as one."""
        windows_M = None
        if self.windows_M is not None:
            windows_M = self.windows_M[first:last]
            first, last = self.starts_of_texts[[first, last]].tolist()
        start, end = self._starts[first], self._starts[last]
        optional = self.segments_T, self.tags_T, self.words_T
        segments_T, tags_T, words_T = (None if t is None else t[start:end] for t in optional)
        lengths = self.lengths[first:last]
        ids_T, positions_T = self.ids_T[start:end], self.positions_T[start:end]
        return Sequences(ids_T, positions_T, segments_T, lengths, tags_T, words_T, self.options, windows_M)

    def word_places(self, width: int | None = None) -> npt.NDArray[np.int64]:
        """The place of the first token of each word, [S, W], with -1 behind the last word of a sequence.

        W is the largest number of words of a sequence, or `width`.
        """
        assert self.words_T is not None
        places = np.flatnonzero(self.words_T)
        first_S1 = np.searchsorted(places, self._starts)
        counts_S = np.diff(first_S1)
        width = max(1, int(counts_S.max(initial=0))) if width is None else width
        places_SW = np.full((len(self), width), -1, dtype=np.int64)
        columns = np.arange(len(places)) - first_S1[:-1].repeat(counts_S)
        places_SW[np.arange(len(self)).repeat(counts_S), columns] = places
        return places_SW

    @cached_property
    def _starts(self) -> list[int]:
        return list(accumulate(self.lengths, initial=0))


def joined_and_separate(reading: Reading, num_texts: int) -> tuple[bool, bool]:
    """Whether an example has a sequence with all of its texts, and whether it has a sequence for each text."""
    joined = num_texts > 1 and reading != "separate"
    return joined, not joined or reading == "both"


def make_sequences(
    texts: Texts,
    reading: Reading,
    special_ids: tuple[int, int],
    max_length: int,
    pair: PairForm = BERT_PAIR,
    cut_start: bool = False,
) -> Sequences:
    """Put special tokens around the texts of each example; `special_ids` are those of [CLS] and [SEP].

    A sequence is copied in pieces, each of which ends with [SEP]: `[CLS] a [SEP]`, and `b [SEP]` for each further text
    (`[SEP] b [SEP]` if two separators are between texts). A piece is copied together with the tokens before and behind
    its text, which are then overwritten by the special tokens. Special tokens have no tag, that is, tag 0. A missing
    option has only the first piece, without a text. With `cut_start`, long texts lose their beginning.
    """
    options = 1
    if reading == "options":
        texts, options = texts.with_each_option(), texts.lengths_NW.shape[1] - 1
    pieces = _pieces(texts, reading, max_length, pair, cut_start)
    first_P, lengths_P = pieces.first_P, pieces.lengths_P
    ends_P = lengths_P.cumsum()
    starts_P = ends_P - lengths_P
    starts_S = starts_P[first_P]
    places_T = np.arange(lengths_P.sum())
    sources_T = places_T + (pieces.text_starts_P - pieces.before_P - starts_P).repeat(lengths_P)
    separators_R = (starts_P[~first_P, None] + np.arange(pair.separators - 1)).ravel()
    ids_T = _taken(texts.ids, sources_T)
    cls_id, sep_id = special_ids
    ids_T[ends_P - 1] = sep_id
    ids_T[starts_S] = cls_id
    ids_T[separators_R] = sep_id
    tags_T = None
    if texts.tags is not None:
        tags_T = _taken(texts.tags, sources_T)
        tags_T[ends_P - 1] = tags_T[starts_S] = tags_T[separators_R] = 0
    lengths_S = np.diff(starts_S, append=len(places_T))
    positions_T = places_T - starts_S.repeat(lengths_S)
    joined, _ = joined_and_separate(reading, texts.lengths_NW.shape[1])
    segments_T = (~first_P).astype(np.int64).repeat(lengths_P) if joined and pair.second_segment else None
    words_T = None
    if texts.words is not None:
        words_T = _taken(texts.words, sources_T)
        words_T[ends_P - 1] = words_T[starts_S] = 0
        if texts.owned_N2 is not None:
            first_T, last_T = (texts.owned_N2[:, side].repeat(lengths_S) for side in (0, 1))
            words_T = np.where((positions_T > first_T) & (positions_T <= last_T), words_T, 0)
    return Sequences(ids_T, positions_T, segments_T, lengths_S.tolist(), tags_T, words_T, options)


class _Pieces(NamedTuple):
    """P pieces of sequences: a text with the special tokens before it, and one behind it."""

    text_starts_P: npt.NDArray[np.int64]
    """Where the text begins, among those of all texts."""
    before_P: npt.NDArray[np.int64]
    """The number of special tokens before the text."""
    first_P: npt.NDArray[np.bool_]
    """Whether it begins a sequence."""
    lengths_P: npt.NDArray[np.int64]


def _pieces(texts: Texts, reading: Reading, max_length: int, pair: PairForm, cut_start: bool) -> _Pieces:
    num_texts = texts.lengths_NW.shape[1]
    joined, separate = joined_and_separate(reading, num_texts)
    lengths, before, is_first = [], [], []
    if joined:
        lengths.append(truncated_lengths(texts.lengths_NW, max_length - pair.special_tokens(num_texts)))
        before += [1] + [pair.separators - 1] * (num_texts - 1)
        is_first += [True] + [False] * (num_texts - 1)
    if separate:
        lengths.append(np.minimum(texts.lengths_NW, max_length - 2))
        before += [1] * num_texts
        is_first += [True] * num_texts
    starts = [texts.starts_NW + (texts.lengths_NW - kept if cut_start else 0) for kept in lengths]
    before_P, first_P = np.tile(before, len(texts)), np.tile(is_first, len(texts))
    lengths_P = before_P + np.concatenate(lengths, axis=1).ravel() + 1
    starts_P = np.concatenate(starts, axis=1).ravel()
    if reading != "options":
        return _Pieces(starts_P, before_P, first_P, lengths_P)
    given_P = first_P | (texts.lengths_NW[:, 1] > 0).repeat(2)
    return _Pieces(starts_P[given_P], before_P[given_P], first_P[given_P], lengths_P[given_P])


def _taken(values: Ids, sources_T: npt.NDArray[np.int64]) -> Ids:
    """The values at these places; places next to those of the texts, which are overwritten, may be outside."""
    return values.take(sources_T, mode="clip") if len(values) else np.zeros_like(sources_T)


def truncated_lengths(lengths_NW: npt.NDArray[np.int64], room: int) -> npt.NDArray[np.int64]:
    """The lengths of texts that are truncated to `room` tokens together, the longest first.

    From the shortest text to the longest, each gets an equal share of what is left. For pairs this is what Hugging
    Face's `longest_first` does: if both are truncated and `room` is odd, the longer text keeps the odd token; if they
    are equally long, the second one does.
    """
    long_N = np.flatnonzero(lengths_NW.sum(1) > room)
    if not len(long_N):
        return lengths_NW
    num_texts = lengths_NW.shape[1]
    order_LW = np.argsort(lengths_NW[long_N], axis=1, kind="stable")
    sorted_LW = np.take_along_axis(lengths_NW[long_N], order_LW, axis=1)
    left_L = np.full(len(long_N), room, dtype=lengths_NW.dtype)
    for column in range(num_texts):
        sorted_LW[:, column] = np.minimum(sorted_LW[:, column], left_L // (num_texts - column))
        left_L -= sorted_LW[:, column]
    kept_LW = np.empty_like(sorted_LW)
    np.put_along_axis(kept_LW, order_LW, sorted_LW, axis=1)
    truncated_NW = lengths_NW.copy()
    truncated_NW[long_N] = kept_LW
    return truncated_NW


def truncate_text(text: Ids, room: int, cut_start: bool = False) -> Ids:
    """Cut off the end of a text, or its start, if it has more than `room` tokens."""
    return text[max(len(text) - room, 0) :] if cut_start else text[:room]


def truncate_texts(texts: tuple[Ids, ...], room: int, cut_start: bool = False) -> list[Ids]:
    """Truncate texts to `room` tokens together, as `truncated_lengths` says."""
    (kept,) = truncated_lengths(np.array([[len(text) for text in texts]], dtype=np.int64), room).tolist()
    return [truncate_text(*one, cut_start) for one in zip(texts, kept, strict=True)]
