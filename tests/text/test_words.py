"""Words and their first tokens: every word has exactly one, whatever it consists of."""

from pathlib import Path

import pytest

from polytask.text.tokenizer import TextTokenizer
from polytask.text.words import BETWEEN_SPACES, encode_words, join_words, split_words


@pytest.fixture(scope="module")
def tokenizer(minilm: Path) -> TextTokenizer:
    return TextTokenizer.load(minilm)


def test_a_running_text_is_split_at_marks_too() -> None:
    text = "Ada's dog (2 years) isn't co-operative."
    assert [text[a:b] for a, b in split_words(text).words] == [
        *("Ada", "'", "s", "dog", "(", "2", "years", ")", "isn", "'", "t", "co", "-", "operative", "."),
    ]
    assert [text[a:b] for a, b in split_words(text, BETWEEN_SPACES).words] == text.split()


@pytest.mark.parametrize(
    "words",
    [
        ["Jo\u0308rg", ",", "Zoe\u0308"],  # accents as characters of their own, as in file names of macOS
        ["हिन्दी", "में", "।"],
        ["می\u200cخواهم", "."],  # noqa: RUF001
        ["I", "❤\ufe0f", "it", "!"],
        ["x", "\u0301"],  # an accent after a space
    ],
)
def test_accents_and_vowel_signs_belong_to_their_words(words: list[str]) -> None:
    text = " ".join(words)
    assert [text[a:b] for a, b in split_words(text).words] == words


def test_joined_words_keep_their_places() -> None:
    words = ["New York", "is", "big", "."]
    text, places = join_words(words)
    assert text == "New York is big ."
    assert [text[a:b] for a, b in places] == words


@pytest.mark.parametrize(
    "words",
    [
        ["Unbelievably", "long", "wordpieces", "."],
        ["\u200b", "a", "\x01"],
        ["don't", "U.S.", "naïve", "\U00012000", "東京"],
        ["\ud800", "x"],
        ["[CLS]", "[MASK]"],
        ["a" * 300, "b"],
    ],
)
def test_every_word_has_one_first_token(words: list[str], tokenizer: TextTokenizer) -> None:
    (found,) = encode_words(tokenizer, [join_words(words)])
    assert found.is_first.sum() == len(words)
    assert len(found.ids) == len(found.starts) == len(found.is_first)
    places = [start for start, _ in join_words(words).words]
    assert found.starts[found.is_first].tolist() == places


def test_a_usual_text_has_the_usual_tokens(tokenizer: TextTokenizer) -> None:
    text = "The unbelievable lighthouse of Tromsø, seen from afar."
    (found,) = encode_words(tokenizer, [split_words(text)])
    assert found.ids.tolist() == tokenizer.encode([text])[0].tolist()


def test_long_texts_are_not_cut(tokenizer: TextTokenizer) -> None:
    (found,) = encode_words(tokenizer, [split_words("word " * 2000)])
    assert found.is_first.sum() == 2000
