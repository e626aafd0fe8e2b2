"""Tokenizes texts word by word, with a cache of words. Knows words; knows no vocabulary and no file.

BERT's tokenizer treats every word separately, so a text's ids are those of its words, one after another. A language has
few words that are used all the time: looking them up takes an eighth of the time of tokenizing them again.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

END, END_ID = "\0", -1
WORDS = re.compile(r"[A-Za-z0-9]+|[!-/:-@\[-`{-~]|\0")  # words of printable ASCII, and the end of a text
LONGEST = 64  # characters of a word; a text with a longer one, such as one without spaces, is not cached
CAPACITY = 3_000_000  # characters, about a hundred thousand words
PER_WORD = 24  # counted for each word in addition to its characters


class WordCache:
    """Encodes texts, and keeps the ids of words up to a limit of memory."""

    def __init__(self, encode: Callable[[list[str]], list[list[int]]], lowercase: bool) -> None:
        self._encode = encode
        self._lowercase = lowercase
        self._known, self._size = _empty(), 0

    def encode(self, texts: Sequence[str]) -> list[npt.NDArray[np.int32] | None]:
        """Returns each text's ids; None for a text that cannot be divided into words."""
        encoded: list[npt.NDArray[np.int32] | None] = [None] * len(texts)
        # A printable character of ASCII is a letter, a digit, a punctuation mark (a word by itself), or a space.
        plain = [i for i, text in enumerate(texts) if text.isascii() and text.isprintable()]
        joined = "".join([f"{texts[i]}{END}" for i in plain])
        words = WORDS.findall(joined.lower() if self._lowercase else joined)
        rest = sorted(set(range(len(texts))).difference(plain)) if len(plain) < len(texts) else []
        spaced = []
        for i in rest:
            pieces = texts[i].split(" ")  # tokenizers differ in which other characters are spaces
            if END not in texts[i] and max(map(len, pieces)) <= LONGEST:
                words += pieces
                words.append(END)
                spaced.append(i)
        flat = np.fromiter(chain.from_iterable(map(self._ids_of(words).__getitem__, words)), np.int32)
        start = 0
        for i, end in zip(plain + spaced, np.flatnonzero(flat == END_ID).tolist(), strict=True):
            encoded[i] = flat[start:end]
            start = end + 1
        return encoded

    def _ids_of(self, words: Sequence[str]) -> Mapping[str, tuple[int, ...]]:
        """Returns a mapping that holds the ids of these words (and of others)."""
        known = self._known  # another thread may empty the cache meanwhile
        new = list(set(words).difference(known))
        if new:
            needed = sum(map(len, new)) + PER_WORD * len(new)
            if self._size + needed > CAPACITY:
                known, self._size = _empty(), 0
                new = list(set(words).difference(known))
                self._known = known
            known.update(zip(new, map(tuple, self._encode(new)), strict=True))
            self._size += needed
        return known


def encodes_words_separately(tokenizer: Mapping[str, Any]) -> bool:
    """Whether the content of a tokenizer.json is that of a BERT tokenizer without added tokens."""
    kinds = [(tokenizer.get(part) or {}).get("type") for part in ("normalizer", "pre_tokenizer", "model")]
    return kinds == ["BertNormalizer", "BertPreTokenizer", "WordPiece"] and all(
        token["special"] for token in tokenizer["added_tokens"]
    )


def _empty() -> dict[str, tuple[int, ...]]:
    return {END: (END_ID,)}
