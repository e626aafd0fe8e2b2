"""Ids computed word by word are those of the whole text, for any text and any cache size."""

import json
import string
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer

from polytask.text import word_cache as module
from polytask.text.tokenizer import TextTokenizer
from polytask.text.word_cache import WordCache, encodes_words_separately

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LETTERS = string.ascii_letters + string.digits + string.punctuation + "éüßσς你好"
# What a tokenizer drops, splits at, joins, lowers or takes for a space, beside plain words.
ODD = "\0\t\n\x1c\x7f\x85\u00a0\u00ad\u0301\u0345\u200b\u2028\u3000\ufeff\ufffdÉİΣςﬁ😀你好\uff0c。—\u2019“"
TEXTS = st.lists(
    st.sampled_from(
        [*ODD, " ", "  ", "walk", "Walking", "HELLO", "don't", "e\u0301", "[CLS]", "x" * 70, "7.5%", "ab-c"]
    ),
    max_size=12,
).map("".join)


def made(folder: Path, lower: bool) -> TextTokenizer:
    words = ["the", "hello", "##ing", "walk", "Hello", "cls", "##ll"]
    tokens = [*SPECIAL, *LETTERS, *(f"##{c}" for c in LETTERS), *words]
    (folder / "vocab.txt").write_text("\n".join(tokens) + "\n", encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": lower}))
    return TextTokenizer.load(folder)


@pytest.fixture(scope="module", params=[True, False], ids=["lower", "cased"])
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TextTokenizer:
    return made(tmp_path_factory.mktemp("words"), request.param)


def whole(tokenizer: TextTokenizer, text: str) -> list[int]:
    ids: list[int] = tokenizer._tokenizer.encode(text, add_special_tokens=False).ids
    return ids


@settings(max_examples=300, deadline=None)
@given(st.lists(TEXTS | st.text(max_size=20), max_size=6))
@example(["", " ", "\0", "a \0 b", "walk", "a\x85b", "a\u0301 b", "ΑΣ Σ", "x" * 200])
def test_ids_are_those_of_the_complete_text(tokenizer: TextTokenizer, texts: list[str]) -> None:
    assert [ids.tolist() for ids in tokenizer.encode(texts)] == [whole(tokenizer, text) for text in texts]


def test_no_room_to_remember(tokenizer: TextTokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CAPACITY", 200)
    for text in ("the walking", "hello hello the", "7 walks", "éü walk", "the walking"):
        assert tokenizer.encode([text, "walk"])[0].tolist() == whole(tokenizer, text)
    assert tokenizer._words is not None
    assert len(tokenizer._words._known) < 10


def test_words_are_converted_to_ids_once() -> None:
    asked: list[list[str]] = []

    def encode(words: list[str]) -> list[list[int]]:
        asked.append(sorted(words))
        return [[len(word)] for word in words]

    known = WordCache(encode, lowercase=True)
    first = known.encode(["one two, one", "Thrée two"])
    assert [None if ids is None else ids.tolist() for ids in first] == [[3, 3, 1, 3], [5, 3]]
    known.encode(["ONE, two"])
    assert asked == [[",", "Thrée", "one", "two"]]
    assert known.encode(["你" * 65]) == [None]


def test_several_threads_with_little_room(tokenizer: TextTokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CAPACITY", 400)
    wrong: list[str] = []

    def ask(number: int) -> None:
        for i in range(200):
            text = f"walk {number} {i} hello {i * number}"
            if tokenizer.encode([text])[0].tolist() != whole(tokenizer, text):
                wrong.append(text)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.parametrize(
    "change",
    [
        lambda raw: raw.add_tokens([AddedToken("walk on", normalized=True)]),
        lambda raw: setattr(raw, "normalizer", None),
        lambda raw: setattr(raw, "pre_tokenizer", None),
    ],
)
def test_other_tokenizers_get_complete_texts(tmp_path: Path, change: Callable[[Tokenizer], object]) -> None:
    tokenizer = made(tmp_path, True)
    assert encodes_words_separately(json.loads(tokenizer._tokenizer.to_str()))
    change(tokenizer._tokenizer)
    other = TextTokenizer(tokenizer._tokenizer)
    assert other._words is None
    for text in ("hello walk on walk", "Hello THE", "hello, the"):
        assert other.encode([text])[0].tolist() == whole(other, text)
