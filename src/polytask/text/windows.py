"""Long texts in overlapping windows, each word with its output in the window where it has most context. Knows ids only.

The same windows are used in training, evaluation and prediction.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from polytask.text.texts import Texts, texts_of
from polytask.types import NO_LABEL, TokenizedExamples


def cut_windows(texts: Texts, size: int, stride: int) -> tuple[Texts, npt.NDArray[np.int64]]:
    """Returns the windows of single texts, of at most `size` tokens, and the index of each window's text.

    A window starts `stride` tokens after the one before it; the last one ends with the text. Words are divided between
    two windows in the middle of their overlap, so that each has its output where it is farthest from a cut.
    """
    lengths_N = texts.lengths_NW[:, 0]
    counts_N = 1 + np.maximum(-(-(lengths_N - size) // stride), 0)
    rows_M = np.arange(len(texts)).repeat(counts_N)
    number_M = np.arange(len(rows_M)) - (counts_N.cumsum() - counts_N).repeat(counts_N)
    length_M = lengths_N[rows_M]
    start_M = np.minimum(number_M * stride, np.maximum(length_M - size, 0))
    is_last_M = number_M == counts_N[rows_M] - 1
    # The first token whose words belong to the next window, counted from the start of the text.
    next_start_M = np.minimum((number_M + 1) * stride, np.maximum(length_M - size, 0))
    ends_M = np.where(is_last_M, length_M, (next_start_M + start_M + size) // 2)
    firsts_M = np.where(number_M == 0, 0, np.roll(ends_M, 1))
    windows = Texts(
        texts.ids,
        (texts.starts_NW[rows_M, 0] + start_M)[:, None],
        np.minimum(length_M - start_M, size)[:, None],
        texts.tags,
        texts.words,
        np.stack([firsts_M - start_M, ends_M - start_M], axis=1),
    )
    return windows, rows_M


def join_windows(outputs: Tensor, rows: Sequence[int]) -> Tensor:
    """Returns the outputs of texts, [N, W, C + 1], from those of their windows in order; `rows` are their texts."""
    counts = torch.bincount(torch.as_tensor(rows))
    if len(counts) == len(outputs):
        return outputs
    is_word_MW = outputs[..., -1] > 0
    words_M = is_word_MW.sum(1)
    row_M = torch.as_tensor(rows)
    words_N = torch.zeros(len(counts), dtype=torch.long).index_add_(0, row_M, words_M)
    joined = outputs.new_zeros(len(counts), int(words_N.max()), outputs.shape[-1])
    column = torch.arange(int(words_M.sum())) - (words_N.cumsum(0) - words_N).repeat_interleave(words_N)
    joined[row_M.repeat_interleave(words_M), column] = outputs[is_word_MW]
    return joined


@dataclass(frozen=True)
class WindowedExamples:
    """The windows of a task's examples as examples. Labels are those of the words that have their output there."""

    rows: TokenizedExamples
    size: int
    stride: int

    @cached_property
    def _windows(self) -> tuple[Texts, npt.NDArray[np.int64]]:
        return cut_windows(texts_of(self.rows, np.arange(len(self.rows))), self.size, self.stride)

    @cached_property
    def _words(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """The first word of each window, counted from the start of its text, and the one after its last."""
        texts, rows_M = self._windows
        assert texts.words is not None
        assert texts.owned_N2 is not None
        before = np.concatenate([[0], (texts.words != 0).cumsum()])  # words before each token
        firsts_M, ends_M = (before[texts.starts_NW[:, 0] + texts.owned_N2[:, side]] for side in (0, 1))
        text_M = firsts_M[np.searchsorted(rows_M, rows_M)]  # of the text's first window
        return firsts_M - text_M, ends_M - text_M

    def cut(self, values: npt.NDArray[Any], empty: float) -> npt.NDArray[Any]:
        """Returns the part for each window of values for the words of the rows, [N, W, ...]."""
        (firsts_M, ends_M), (_, rows_M) = self._words, self._windows
        if len(rows_M) == len(values):
            return values
        width = int((ends_M - firsts_M).max(initial=0))
        places_MW = firsts_M[:, None] + np.arange(width)
        inside_MW = places_MW < ends_M[:, None]
        parts = values[rows_M[:, None], np.where(inside_MW, places_MW, 0)]
        parts[~inside_MW] = empty
        return parts

    @cached_property
    def labels(self) -> npt.NDArray[Any]:
        return self.cut(self.rows.labels, NO_LABEL)

    def __len__(self) -> int:
        return len(self._windows[1])

    def tokens(self, index: int) -> tuple[npt.NDArray[np.integer], ...]:
        """Returns the ids of one window."""
        return next(iter(self.gather(np.array([index]))))

    def gather(self, indices: npt.NDArray[np.integer]) -> Texts:
        """Returns several windows."""
        return self._windows[0].take(indices)


def with_words(outputs: Tensor, width: int) -> Tensor:
    """Returns outputs [B, W, C + 1] for this many words; what is behind the last word is added or left out."""
    return torch.nn.functional.pad(outputs, (0, 0, 0, width - outputs.shape[1]))


def without_words(texts: Texts) -> Texts:
    """Returns texts that are packed as texts only."""
    return texts if texts.words is None else replace(texts, words=None)
