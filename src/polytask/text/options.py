"""Texts with options: rows with fewer options than others, and options without any token. Knows texts and ids only.

An option without tokens is a missing one, so a text that the tokenizer drops (of zero-width characters, for example) is
replaced by the unknown token.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from polytask.text.tagging import UNTAGGED, TagIds


def widened(texts: tuple[str, ...], width: int) -> tuple[str, ...]:
    """Returns the texts of a row with empty ones behind them, `width` texts in all."""
    return (*texts, *[""] * (width - len(texts)))


def mark_dropped(texts: Sequence[str], ids: list[npt.NDArray[np.int32]], tags: list[TagIds], unknown_id: int) -> None:
    """Puts the unknown token in the place of texts that have no tokens; `tags` may be empty."""
    for i, text in enumerate(texts):
        if text and not len(ids[i]):
            ids[i] = np.array([unknown_id], dtype=np.int32)
            if tags:
                tags[i] = np.array([UNTAGGED], dtype=np.uint16)
