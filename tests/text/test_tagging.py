"""Tags of words and of tokens: from a column, from taggers, and through packing."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from polytask.build import encoder_folder
from polytask.text.masking import Masker
from polytask.text.packing import InputFormat, Packer
from polytask.text.tagging import (
    MOST_TAGS,
    NltkTagger,
    PatternTagger,
    TagVocabulary,
    column_words,
    encode_tagged,
    make_tagger,
    tags_problem,
)
from polytask.text.texts import Texts
from polytask.text.tokenizer import TextTokenizer
from polytask.types import UserError


@pytest.fixture(scope="module")
def tokenizer(minilm: Path) -> TextTokenizer:
    return TextTokenizer.load(minilm)


def shown(tokenizer: TextTokenizer, text: str, tags: str) -> list[tuple[str, int]]:
    """Each token with the number of its word's tag; the tags are letters from A on."""
    ids_of = {letter: number for number, letter in enumerate("ABCDEFG", start=1)}
    ((ids, found),) = encode_tagged(tokenizer, [text], [column_words(text, tags)], ids_of)
    return [(tokenizer.token(i), tag) for i, tag in zip(ids.tolist(), found.tolist(), strict=True)]


def test_every_piece_of_a_word_has_its_tag(tokenizer: TextTokenizer) -> None:
    assert shown(tokenizer, " I don't\tunderstand  tokenization .", "A B C D E") == [
        ("i", 1),
        ("don", 2),
        ("'", 2),
        ("t", 2),
        ("understand", 3),
        ("token", 4),
        ("##ization", 4),
        (".", 5),
    ]


def test_an_unknown_tag_and_no_words_are_untagged(tokenizer: TextTokenizer) -> None:
    assert shown(tokenizer, "good day", "Z B") == [("good", 0), ("day", 2)]
    ((ids, tags),) = encode_tagged(tokenizer, ["good day"], [[]], {})
    assert (len(ids), tags.tolist()) == (2, [0, 0])


@pytest.mark.parametrize("text", ["", "naïve 北京 cafés 🙂!", "a\ud800b", "x" * 20_000, "word " * 20_000])
def test_starts_have_the_ids_of_encode(tokenizer: TextTokenizer, text: str) -> None:
    ((ids, starts),) = tokenizer.encode_with_starts([text])
    np.testing.assert_array_equal(ids, tokenizer.encode([text])[0])
    assert sorted(starts.tolist()) == starts.tolist()


def test_an_untrained_encoder_has_starts_too() -> None:
    tokenizer = TextTokenizer.load(encoder_folder({"layers": 1}))
    ((_, starts),) = tokenizer.encode_with_starts(["Ab cd"])
    assert starts[0] == 0
    assert 3 in starts.tolist()


def test_the_number_of_tags_must_be_that_of_the_words() -> None:
    assert tags_problem("two words", "A B") == ""
    assert "2 word(s) between spaces, but there are 3 tag(s)" in tags_problem("two words", "A B C")
    assert "no tags" in tags_problem("two words", None)


# --- vocabulary -------------------------------------------------------------------------------------------------------
def test_ids_of_another_list_are_translated() -> None:
    vocabulary = TagVocabulary.of(["VB", "NN", "NN"], "pattern")
    assert vocabulary.names == ("NN", "VB")
    np.testing.assert_array_equal(vocabulary.translated(["VB", "XX", "NN"], np.array([0, 1, 2, 3])), [0, 2, 0, 1])


def test_too_many_tags_are_refused() -> None:
    with pytest.raises(UserError, match=rf"at most {MOST_TAGS} different tags, found 501.*right column"):
        TagVocabulary.of(map(str, range(501)), None)


# --- taggers ----------------------------------------------------------------------------------------------------------
def test_pattern_tags_english() -> None:
    pytest.importorskip("textblob")
    tagger = PatternTagger()
    text = "I don\u2019t think it's the best dog, Mr. Smith!"
    words = tagger.words(text)
    starts = [word.start for word in words]
    assert [text[a:b].strip() for a, b in zip(starts, [*starts[1:], len(text)], strict=True)][:6] == [
        *("I", "do", "n\u2019t", "think", "it", "'s")
    ]
    tags = {text[word.start :].split()[0]: word.tag for word in words}
    assert (tags["I"], tags["n\u2019t"], tags["the"], tags["best"], tags["dog,"]) == ("PRP", "RB", "DT", "JJS", "NN")
    assert tagger.words("") == tagger.words(" \t") == []
    assert tagger.fingerprint.startswith("pattern ")


def test_nltk_reads_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = pytest.importorskip("nltk.data")
    folder = tmp_path / "taggers" / "averaged_perceptron_tagger_eng"
    folder.mkdir(parents=True)
    model = {"weights": {"bias": {"NN": 1.0, "VB": 0.5}}, "tagdict": {"the": "DT"}, "classes": ["DT", "NN", "VB"]}
    for name, content in model.items():
        (folder / f"averaged_perceptron_tagger_eng.{name}.json").write_text(json.dumps(content))
    monkeypatch.setattr(data, "path", [str(tmp_path)])
    tagger = NltkTagger()
    assert [(word.start, word.tag) for word in tagger.words("the dog")] == [(0, "DT"), (4, "NN")]
    assert tagger.fingerprint.startswith("nltk ")


def test_nltk_without_data_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = pytest.importorskip("nltk.data")
    monkeypatch.setattr(data, "path", [str(tmp_path)])
    with pytest.raises(UserError, match=r"nltk\.downloader averaged_perceptron_tagger_eng"):
        make_tagger("nltk")


def test_a_tagger_that_is_not_installed_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "textblob.en", None)
    with pytest.raises(UserError, match=r"pattern needs packages .* pip install 'polytask\[tags\]'"):
        make_tagger("pattern")


# --- packing ----------------------------------------------------------------------------------------------------------
TEXTS = Texts(
    np.array([10, 11, 12, 13, 14, 15]),
    np.array([[0, 2], [4, 5]]),
    np.array([[2, 2], [1, 1]]),
    np.array([1, 1, 2, 3, 4, 5], dtype=np.uint16),
)


def packed(
    form: InputFormat, max_length: int = 16, tagged: bool = True, static_shape: bool = False
) -> list[int] | None:
    packer = Packer(("a", "b"), 2, 3, max_length, Masker(4, 60, (0, 1, 2, 3, 4)), tagged)
    stream = packer.pack([packer.part("b", TEXTS, form)], static_shape=static_shape)
    return None if stream.tag_ids_T is None else stream.tag_ids_T.tolist()


def test_tags_follow_their_tokens() -> None:
    assert packed(InputFormat()) == [0, 1, 1, 0, 2, 3, 0, 0, 4, 0, 5, 0]
    assert packed(InputFormat("separate")) == [0, 1, 1, 0, 0, 2, 3, 0, 0, 4, 0, 0, 5, 0]
    both = [0, 1, 1, 0, 2, 3, 0, 0, 1, 1, 0, 0, 2, 3, 0, 0, 4, 0, 5, 0, 0, 4, 0, 0, 5, 0]
    assert packed(InputFormat("both")) == both
    assert packed(InputFormat(), max_length=5) == [0, 1, 0, 2, 0, 0, 4, 0, 5, 0]
    assert packed(InputFormat(), tagged=False) is None
    filled = packed(InputFormat(), static_shape=True)
    assert filled is not None
    assert filled[:12] == packed(InputFormat())
    assert not any(filled[12:])


def test_copied_and_masked_texts_keep_their_tags() -> None:
    single = Texts(TEXTS.ids, TEXTS.starts_NW[:, 1:], TEXTS.lengths_NW[:, 1:], TEXTS.tags)
    packer = Packer(("a",), 2, 3, 16, Masker(4, 60, (0, 1, 2, 3, 4)), tagged=True)
    rngs = [np.random.default_rng(i) for i in range(2)]
    for form, tags in (
        (InputFormat("separate", copies=2), [0, 2, 3, 0, 0, 2, 3, 0, 0, 5, 0, 0, 5, 0]),
        (InputFormat(mask_share=0.5), [0, 2, 3, 0, 0, 5, 0]),
    ):
        stream = packer.pack([packer.part("a", single, form, rngs=rngs)])
        assert stream.tag_ids_T is not None
        assert stream.tag_ids_T.tolist() == tags


def test_a_task_without_tags_is_untagged() -> None:
    packer = Packer(("a", "b"), 2, 3, 16, tagged=True)
    parts = [packer.part("b", TEXTS, InputFormat()), packer.part("a", [(np.array([7, 8]),)], InputFormat())]
    stream = packer.pack(parts)
    assert stream.tag_ids_T is not None
    assert stream.tag_ids_T.tolist() == [0, 0, 0, 0, 0, 1, 1, 0, 2, 3, 0, 0, 4, 0, 5, 0]
