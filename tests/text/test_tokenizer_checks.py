"""Errors of untrusted tokenizers are messages, and their memory and time are limited."""

import base64
import struct
from typing import Any

import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from polytask.text.tokenizer import TextTokenizer
from polytask.text.tokenizer_checks import MOST_GROWTH, check_content, library_errors, num_ids
from polytask.types import UserError

VOCABULARY = {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "[MASK]": 4, "a": 5}


class PanicException(BaseException):
    pass


@pytest.mark.parametrize("error", [Exception("odd"), PanicException("odd"), TypeError("odd")])
def test_errors_of_the_library_become_messages(error: BaseException) -> None:
    with pytest.raises(UserError, match=r"file: no tokenizer \(odd\)"), library_errors("file: no tokenizer"):
        raise error


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_exceptions_that_end_the_process_pass(error: type[BaseException]) -> None:
    with pytest.raises(error), library_errors("file"):
        raise error


def test_our_own_messages_stay_as_they_are() -> None:
    with pytest.raises(UserError, match=r"^mine$"), library_errors("file"):
        raise UserError("mine")


def charsmap(longest: int) -> str:
    return base64.b64encode(struct.pack("<I", 8) + bytes(8) + b"ab\0" + b"x" * longest + b"\0").decode()


def replace(letters: int) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"String": "a"}, "content": "b" * letters}


@pytest.mark.parametrize(
    ("normalizer", "allowed"),
    [
        (None, True),
        ({"type": "BertNormalizer"}, True),
        ({"type": "Sequence", "normalizers": [replace(2)] * 9}, True),
        ({"type": "Sequence", "normalizers": [replace(2)] * 10}, False),
        ({"type": "Sequence", "normalizers": [{"type": "Sequence", "normalizers": [replace(40)] * 2}]}, False),
        (replace(0), True),
        (replace(MOST_GROWTH), True),
        (replace(MOST_GROWTH + 1), False),
        ({"type": "Prepend", "prepend": "x" * 2_000}, False),
        ({"type": "Precompiled", "precompiled_charsmap": charsmap(18)}, True),
        ({"type": "Precompiled", "precompiled_charsmap": charsmap(5_000)}, False),
    ],
)
def test_normalizers_may_make_texts_longer_only_so_far(normalizer: Any, allowed: bool) -> None:
    if allowed:
        check_content({"normalizer": normalizer})
    else:
        with pytest.raises(UserError, match=r"normalizer must turn one character into at most"):
            check_content({"normalizer": normalizer})


def test_the_number_of_ids_counts_gaps() -> None:
    assert num_ids({}) == 0
    assert num_ids({"a": 0, "b": 7}) == 8
    with pytest.raises(UserError, match="largest token id must be below 10000000, found 4000000000"):
        num_ids({"a": 4 * 10**9})


def made(**changes: Any) -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece({**VOCABULARY, **changes}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return tokenizer


def test_gaps_in_a_vocabulary_count_among_its_ids() -> None:
    assert TextTokenizer(made()).vocabulary == len(VOCABULARY)
    assert TextTokenizer(made(b=900)).vocabulary == 901


def test_a_text_the_library_fails_on_is_an_error_of_the_users() -> None:
    tokenizer = made()
    tokenizer.model = models.WordPiece(VOCABULARY, unk_token="[GONE]")
    with pytest.raises(UserError, match="tokenizer failed on a text"):
        TextTokenizer(tokenizer).encode(["b"])
