"""The words of a text, and the first token of each of them. Knows no task, no label and no model."""

import re
import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from polytask.text.tokenizer import TextTokenizer

JOINED = "".join(char for char in map(chr, range(0x300, 0x20000)) if unicodedata.category(char).startswith("M"))
JOINED += "\u200c\u200d"
"""Characters that belong to the one before them: accents, vowel signs, and the joiners of Persian and Hindi words.

Python's `\\w` has none of them.
"""
SEPARATE = re.compile(rf"\w+(?:[{JOINED}]+\w*)*|[^\w\s][{JOINED}]*")
"""The words of a running text: letters with their accents and digits, and every other mark by itself."""
BETWEEN_SPACES = re.compile(r"\S+")


class WordText(NamedTuple):
    """A text, and the first character of each of its words with the one after its last."""

    text: str
    words: tuple[tuple[int, int], ...]


class EncodedWords(NamedTuple):
    """The tokens of a text: their ids, their first characters, and whether each is the first token of a word."""

    ids: npt.NDArray[np.int32]
    starts: npt.NDArray[np.int32]
    is_first: npt.NDArray[np.bool_]


def split_words(text: str, pattern: re.Pattern[str] = SEPARATE) -> WordText:
    """Splits a running text into words."""
    return WordText(text, tuple(match.span() for match in pattern.finditer(text)))


def join_words(words: Sequence[str]) -> WordText:
    """Joins words with spaces."""
    text, places = " ".join(words), []
    start = 0
    for word in words:
        places.append((start, start + len(word)))
        start += len(word) + 1
    return WordText(text, tuple(places))


def encode_words(tokenizer: TextTokenizer, texts: Sequence[WordText]) -> list[EncodedWords]:
    """Returns the tokens of whole texts, without a limit of their number.

    Every word has a first token: the text is encoded word by word if some token belongs to two words, and a word
    that the tokenizer drops, such as a control character, becomes the unknown token.
    """
    encoded = []
    for text, (ids, starts) in zip(texts, tokenizer.encode_whole_with_starts([one.text for one in texts]), strict=True):
        is_first = _first_tokens(text, starts)
        if is_first is None:
            encoded.append(_word_by_word(tokenizer, text))
        else:
            encoded.append(EncodedWords(ids, starts, is_first))
    return encoded


def _first_tokens(text: WordText, starts_T: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_] | None:
    """Returns which tokens are the first of a word; None if a word has none."""
    word_T = np.searchsorted([start for start, _ in text.words], starts_T, side="right")
    is_first: npt.NDArray[np.bool_] = np.diff(word_T, prepend=0) > 0
    return is_first if int(is_first.sum()) == len(text.words) else None


def _word_by_word(tokenizer: TextTokenizer, text: WordText) -> EncodedWords:
    ids, starts, is_first = [], [], []
    # A space in front of a word tells tokenizers that mark spaces where it begins.
    spaced = [" " * (start > 0 and text.text[start - 1].isspace()) + text.text[start:end] for start, end in text.words]
    for (start, _), tokens in zip(text.words, tokenizer.encode(spaced), strict=True):
        own = tokens if len(tokens) else np.array([tokenizer.unk_id], np.int32)
        ids.append(own)
        starts.append(np.full(len(own), start, np.int32))
        is_first.append(np.arange(len(own)) == 0)
    if not ids:
        return EncodedWords(np.zeros(0, np.int32), np.zeros(0, np.int32), np.zeros(0, bool))
    return EncodedWords(np.concatenate(ids), np.concatenate(starts), np.concatenate(is_first))
