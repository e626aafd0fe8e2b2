"""The tokenizer gives the ids of transformers, and no text can forge a special token."""

import json
import string
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer
from transformers import AutoTokenizer, BertTokenizerFast

from polytask.text.tokenizer import TextTokenizer
from polytask.types import UserError

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
CHARACTERS = string.ascii_letters + string.digits + string.punctuation + "éüß你好"
WORDS = ["the", "hello", "world", "##ing", "walk", "\u2028x", "Hello", "e\u0301"]
TEXTS = [
    "Hello, WORLD! The walking walk.",
    "naïve Café über 你好 ß İstanbul",
    "  tabs\tand\nnew lines \u200b\u00a0 ",
    "x" * 120,
    "e\u0301 combining",
    "😀 unknown",
    "",
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tokens = [*SPECIAL, *CHARACTERS, *(f"##{c}" for c in CHARACTERS), *WORDS]
    (tmp_path / "vocab.txt").write_text("\n".join(tokens) + "\n", encoding="utf-8")
    return tmp_path


def ids(tokenizer: TextTokenizer, texts: list[str]) -> list[list[int]]:
    return [text.tolist() for text in tokenizer.encode(texts)]


@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("accents", [None, True, False])
@pytest.mark.parametrize("chinese", [True, False])
def test_vocab_txt_gives_the_ids_of_transformers(
    folder: Path, lower: bool, accents: bool | None, chinese: bool
) -> None:
    config = {"do_lower_case": lower, "strip_accents": accents, "tokenize_chinese_chars": chinese}
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer", **config}))
    expected = BertTokenizerFast.from_pretrained(folder)(TEXTS, add_special_tokens=False)["input_ids"]
    assert ids(TextTokenizer.load(folder), TEXTS) == expected


def test_saved_files_open_in_transformers_and_here_with_the_same_ids(folder: Path, tmp_path: Path) -> None:
    ours = TextTokenizer.load(folder)
    ours.save(tmp_path / "saved")
    theirs = AutoTokenizer.from_pretrained(tmp_path / "saved")
    again = TextTokenizer.load(tmp_path / "saved")
    assert "Bert" in type(theirs).__name__
    assert theirs.model_max_length == 512
    assert theirs(TEXTS, add_special_tokens=False)["input_ids"] == ids(ours, TEXTS) == ids(again, TEXTS)
    assert theirs("hello")["input_ids"] == [ours.cls_id, *ids(ours, ["hello"])[0], ours.sep_id]
    assert again.fingerprint == ours.fingerprint
    assert len(ours.fingerprint) == 64


def test_a_cased_tokenizer_stays_cased_when_saved(folder: Path, tmp_path: Path) -> None:
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    ours = TextTokenizer.load(folder)
    ours.save(tmp_path / "saved")
    assert json.loads((tmp_path / "saved/tokenizer_config.json").read_text())["do_lower_case"] is False
    assert AutoTokenizer.from_pretrained(tmp_path / "saved").tokenize("Hello") == ["Hello"]


def test_fingerprint_changes_with_the_vocabulary(folder: Path) -> None:
    before = TextTokenizer.load(folder).fingerprint
    with (folder / "vocab.txt").open("a", encoding="utf-8") as vocabulary:
        vocabulary.write("newword\n")
    assert TextTokenizer.load(folder).fingerprint != before


def test_padding_and_truncation_of_tokenizer_json_are_off(folder: Path, tmp_path: Path) -> None:
    TextTokenizer.load(folder).save(tmp_path / "saved")
    raw = Tokenizer.from_file(str(tmp_path / "saved/tokenizer.json"))
    raw.enable_padding(length=32)
    raw.enable_truncation(8)
    raw.save(str(tmp_path / "saved/tokenizer.json"))
    tokenizer = TextTokenizer.load(tmp_path / "saved")
    assert [len(text) for text in tokenizer.encode(["the", "the " * 20])] == [1, 20]
    assert tokenizer.fingerprint == TextTokenizer.load(folder).fingerprint


def test_a_text_has_as_many_ids_as_a_sequence_can_hold(folder: Path) -> None:
    text = "the hello world " * 500
    (whole,) = BertTokenizerFast.from_pretrained(folder)([text], add_special_tokens=False)["input_ids"]
    for max_length, kept in ((4, 512), (512, 512), (1024, 1024), (5000, 1500)):
        (found,) = TextTokenizer.load(folder, max_length).encode([text])
        assert found.tolist() == whole[:kept]
        assert found.dtype == np.int32


def test_the_last_ids_are_kept_where_the_start_is_cut(folder: Path) -> None:
    text = "the hello world " * 3000 + "walk"
    (whole,) = BertTokenizerFast.from_pretrained(folder)([text], add_special_tokens=False)["input_ids"]
    tokenizer = TextTokenizer.load(folder, 700, "start")
    for encode in (tokenizer.encode, tokenizer._encode_whole):
        (found,) = encode([text])
        assert found.tolist() == whole[-700:]
    ((found, starts),) = tokenizer.encode_with_starts([text])
    assert found.tolist() == whole[-700:]
    assert text[starts[-1] :] == "walk"


def test_tokens_of_texts_of_any_length_are_counted(folder: Path) -> None:
    tokenizer = TextTokenizer.load(folder)
    theirs = BertTokenizerFast.from_pretrained(folder)
    long = "the hello Walking, world! " * 4000
    for text in (*TEXTS, long, " " * 40_000 + "walk", "é" * 20_000):
        assert tokenizer.count(text) == len(theirs(text, add_special_tokens=False)["input_ids"]) or text[0] == "é"


def test_saved_files_have_the_models_limit_and_no_truncation(folder: Path, tmp_path: Path) -> None:
    TextTokenizer.load(folder, 1024).save(tmp_path / "saved", positions=1024)
    theirs = AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert theirs.model_max_length == 1024
    assert len(theirs("the " * 2000, truncation=True)["input_ids"]) == 1024
    assert json.loads((tmp_path / "saved/tokenizer.json").read_text())["truncation"] is None


@pytest.mark.parametrize(
    "text",
    [
        *("the hello " * 20_000, "你" * 50_000, "x" * 100_000, "!" * 50_000, "hello\u200b" * 20_000),
        *("a" + "\u0301" * 50_000, " " * 50_000 + "hello", "你" * 400 + "x" * 100_000),
        "walking " * 300 + "\u0301" * 50_000 + " the",
    ],
    ids=lambda text: f"{text[:5]!r}, {len(text)} characters",
)
def test_a_long_text_has_the_ids_of_its_start(folder: Path, text: str) -> None:
    tokenizer = TextTokenizer.load(folder)
    whole = tokenizer._tokenizer.encode(text, add_special_tokens=False).ids
    assert ids(tokenizer, ["the", text, "world"])[1] == whole[:512]


def test_special_tokens_in_a_text_are_text(folder: Path) -> None:
    tokenizer = TextTokenizer.load(folder)
    control = {tokenizer.cls_id, tokenizer.sep_id, tokenizer.pad_id, tokenizer.mask_id}
    (found,) = ids(tokenizer, [" ".join(SPECIAL)])
    assert control == {2, 3, 0, 4}
    assert not control & set(found)


def test_special_token_names_come_from_the_config(folder: Path) -> None:
    content = (folder / "vocab.txt").read_text(encoding="utf-8").replace("[CLS]", "<s>")
    (folder / "vocab.txt").write_text(content, encoding="utf-8")
    with pytest.raises(UserError, match=r"vocab.txt: no line with the cls_token '\[CLS\]'"):
        TextTokenizer.load(folder)
    (folder / "special_tokens_map.json").write_text('{"cls_token": {"content": "<s>"}}')
    assert TextTokenizer.load(folder).cls_id == 2


def test_lone_surrogates_do_not_crash(folder: Path) -> None:
    tokenizer = TextTokenizer.load(folder)
    assert ids(tokenizer, ["hello \ud800 world", "the"]) == ids(tokenizer, ["hello world", "the"])
    assert ids(tokenizer, ["\ud83d\ude00"]) == ids(tokenizer, ["😀"])
    assert tokenizer.encode([]) == []


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (None, "", "no tokenizer found; expected a tokenizer.json or a vocab.txt"),
        ("tokenizer.json", "{", "tokenizer.json: not a tokenizer file"),
        ("tokenizer_config.json", "{", "tokenizer_config.json is not valid JSON"),
    ],
)
def test_errors_name_the_file(tmp_path: Path, name: str | None, content: str, message: str) -> None:
    if name:
        (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=message) as error:
        TextTokenizer.load(tmp_path)
    assert str(tmp_path) in str(error.value)
