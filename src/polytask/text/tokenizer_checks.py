"""Checks on untrusted tokenizer files: they must not stop the process, nor turn a short text into gigabytes.

Knows the content of a tokenizer.json and the errors of the `tokenizers` library; knows no text.
"""

import base64
import math
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from polytask.types import UserError

MOST_IDS = 10**7
MOST_GROWTH = 1000  # characters that a normalizer may turn one character into; NFKC gives up to 18
LONGEST_WORD = 1000  # WordPiece tries every end of a word, so that its time is quadratic in this; BERT has 100


@contextmanager
def library_errors(where: str) -> Iterator[None]:
    """Turns the errors of the library into a UserError: it raises Exception, and its Rust code BaseException."""
    try:
        yield
    except UserError:
        raise
    except BaseException as error:
        if isinstance(error, Exception) or type(error).__name__ == "PanicException":
            raise UserError(f"{where} ({error})") from None
        raise


def check_content(content: Mapping[str, Any]) -> None:
    """Raises a UserError for a tokenizer that would need too much memory or time for an ordinary text."""
    growth = _growth(content.get("normalizer"))
    if growth > MOST_GROWTH:
        raise UserError(
            f"the tokenizer's normalizer must turn one character into at most {MOST_GROWTH}, found {growth:.0f}"
        )
    longest = (content.get("model") or {}).get("max_input_chars_per_word") or 0
    if longest > LONGEST_WORD:
        raise UserError(f"the tokenizer's max_input_chars_per_word must be in [1, {LONGEST_WORD}], found {longest}")


def num_ids(vocabulary: Mapping[str, int]) -> int:
    """Returns the largest token id plus one: ids may have gaps, and an encoder needs a vector for every id."""
    count = 1 + max(vocabulary.values(), default=-1)
    if count > MOST_IDS:  # the library loops over every number below the largest id when it saves a tokenizer
        raise UserError(f"the tokenizer's largest token id must be below {MOST_IDS}, found {count - 1}")
    return count


def _growth(normalizer: Mapping[str, Any] | None) -> float:
    """Returns an upper bound of the characters that a normalizer turns one into, without the library's small ones."""
    if not normalizer:
        return 1.0
    match normalizer.get("type"):
        case "Sequence":
            return math.prod(map(_growth, normalizer["normalizers"]))
        case "Replace":
            return max(1.0, float(len(normalizer["content"])))
        case "Prepend":
            return 1.0 + len(normalizer["prepend"])
        case "Precompiled":
            return _longest_replacement(normalizer["precompiled_charsmap"])
    return 1.0


def _longest_replacement(charsmap: str) -> float:
    """Returns the longest replacement of a SentencePiece table.

    The table holds the size of a search tree, the tree, and the replacements, each ended by a NUL.
    """
    table = base64.b64decode(charsmap)
    (tree,) = struct.unpack_from("<I", table)
    return max(1.0, float(max(map(len, table[4 + tree :].split(b"\0")))))
