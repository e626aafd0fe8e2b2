"""Token ids word by word: what a word became once it is again. Knows words; knows no vocabulary and no file.

BERT's tokenizer treats every word by itself, so a text's ids are those of its words, one after another. A language has
few words that are used all the time: looking them up takes an eighth of the time of making their ids anew.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

END, END_ID = "\0", -1
WORDS = re.compile(r"[A-Za-z0-9]+|[!-/:-@\[-`{-~]|\0")  # of printable ASCII, and the end of a text
LONGEST = 64  # of a word: texts without spaces are not made of words
ROOM = 3_000_000  # about a hundred thousand words
EACH = 24  # what a word takes beside its letters


class WordIds:
    """The ids of words that were met, as many as there is room for."""

    def __init__(self, encode: Callable[[list[str]], list[list[int]]], lowercase: bool) -> None:
        self._encode = encode
        self._lowercase = lowercase
        self._known, self._held = _nothing(), 0

    def encode(self, texts: Sequence[str]) -> list[npt.NDArray[np.int32] | None]:
        """Each text's ids; None for one that is not made of words."""
        found: list[npt.NDArray[np.int32] | None] = [None] * len(texts)
        # A printable character of ASCII is a letter, a digit, a mark that is a word by itself, or a space.
        plain = [i for i, text in enumerate(texts) if text.isascii() and text.isprintable()]
        joined = "".join([f"{texts[i]}{END}" for i in plain])
        words = WORDS.findall(joined.lower() if self._lowercase else joined)
        rest = sorted(set(range(len(texts))).difference(plain)) if len(plain) < len(texts) else []
        spaced = []
        for i in rest:
            between = texts[i].split(" ")  # no other space is one to every tokenizer
            if END not in texts[i] and max(map(len, between)) <= LONGEST:
                words += between
                words.append(END)
                spaced.append(i)
        flat = np.fromiter(chain.from_iterable(map(self._ids_of(words).__getitem__, words)), np.int32)
        start = 0
        for i, end in zip(plain + spaced, np.flatnonzero(flat == END_ID).tolist(), strict=True):
            found[i] = flat[start:end]
            start = end + 1
        return found

    def _ids_of(self, words: Sequence[str]) -> Mapping[str, tuple[int, ...]]:
        """The ids of these words, and of others."""
        known = self._known  # another thread may start afresh meanwhile
        new = list(set(words).difference(known))
        if new:
            needed = sum(map(len, new)) + EACH * len(new)
            if self._held + needed > ROOM:
                known, self._held = _nothing(), 0
                new = list(set(words).difference(known))
                self._known = known
            known.update(zip(new, map(tuple, self._encode(new)), strict=True))
            self._held += needed
        return known


def treats_words_by_themselves(tokenizer: Mapping[str, Any]) -> bool:
    """Whether the content of a tokenizer.json is that of a BERT tokenizer without tokens that somebody added."""
    kinds = [(tokenizer.get(part) or {}).get("type") for part in ("normalizer", "pre_tokenizer", "model")]
    return kinds == ["BertNormalizer", "BertPreTokenizer", "WordPiece"] and all(
        token["special"] for token in tokenizer["added_tokens"]
    )


def _nothing() -> dict[str, tuple[int, ...]]:
    return {END: (END_ID,)}
