"""Long texts in overlapping windows. Knows ids only."""

import numpy as np
import numpy.typing as npt

from polytask.text.texts import Texts


def cut_windows(texts: Texts, size: int, stride: int) -> tuple[Texts, npt.NDArray[np.int64]]:
    """Returns the windows of single texts, of at most `size` tokens, and the index of each window's text.

    A window starts `stride` tokens after the one before it; the last one ends with the text.
    """
    lengths_N = texts.lengths_NW[:, 0]
    counts_N = 1 + np.maximum(-(-(lengths_N - size) // stride), 0)
    rows_M = np.arange(len(texts)).repeat(counts_N)
    number_M = np.arange(len(rows_M)) - (counts_N.cumsum() - counts_N).repeat(counts_N)
    length_M = lengths_N[rows_M]
    start_M = np.minimum(number_M * stride, np.maximum(length_M - size, 0))
    windows = Texts(
        texts.ids,
        (texts.starts_NW[rows_M, 0] + start_M)[:, None],
        np.minimum(length_M - start_M, size)[:, None],
        texts.tags,
    )
    return windows, rows_M
