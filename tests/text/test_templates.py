"""BPE and SentencePiece tokenizers: the ids, pairs and offsets of transformers, on thousands of odd strings."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from polytask.text.packing import InputFormat, Packer, Part
from polytask.text.tagging import TaggedWord, encode_tagged
from polytask.text.templates import PairForm
from polytask.text.texts import Texts
from polytask.text.tokenizer import TextTokenizer
from polytask.types import UserError

ROBERTA = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
NAMES = dict(zip(["cls_token", "pad_token", "sep_token", "unk_token", "mask_token"], ROBERTA, strict=True))
WORDS = ["the", "book", "was", "good", "naïve", "straße", "don't", "it's", "北京", "東京都", "3.14", "é", "Ünïcode"]
WORDS += ["\U0001f642", "\U0001f469\u200d\U0001f469\u200d\U0001f467"]
ODD = [
    *" \t\n\r\u00a0\u200b\u3000\ufeff\u00ad",
    "\x00",
    "\x7f",
    "\ufffd",
    "e\u0301",
    "\ufb01",
    "½",
    "\u2167",
    "…",
    "--",
]
ODD += ["א", "ب", "ก", "한국", "\u202e", "a" * 60, "!?", "&amp;", "http://x.yz/?q=1", "\U00012000", "_", "▁", "<", "s>"]


def odd_strings(count: int) -> list[str]:
    rng = random.Random(0)
    made = ["", " ", "  two  spaces  ", "\n", "word"]
    while len(made) < count:
        pieces = [rng.choice(rng.choice((WORDS, ODD))) for _ in range(rng.randrange(1, 14))]
        made.append(rng.choice(("", " ", " ")).join(pieces))
    return made


TEXTS = odd_strings(5000)


def byte_level_bpe() -> Tokenizer:
    """As RoBERTa's."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    mask = AddedToken("<mask>", lstrip=True, special=True)
    trainer = trainers.BpeTrainer(vocab_size=700, special_tokens=[*ROBERTA[:4], mask], initial_alphabet=alphabet)
    tokenizer.train_from_iterator(TEXTS[:1500], trainer)
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), trim_offsets=True)
    return tokenizer


def modern_bpe() -> Tokenizer:
    """As ModernBERT's: byte-level BPE with BERT's special tokens at the end, and a template."""
    names = ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=600, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(TEXTS[:1500], trainer)
    tokenizer.add_special_tokens(names)
    ids = [(name, tokenizer.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0", pair="[CLS]:0 $A:0 [SEP]:0 $B:0 [SEP]:0", special_tokens=ids
    )
    return tokenizer


def unigram() -> Tokenizer:
    """As XLM-R's SentencePiece."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(" {2,}", " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=400, special_tokens=ROBERTA, unk_token="<unk>")
    tokenizer.train_from_iterator(TEXTS[:1500], trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    return tokenizer


MAKE: dict[str, Callable[[], Tokenizer]] = {"roberta": byte_level_bpe, "modernbert": modern_bpe, "xlm-roberta": unigram}
PAIRS = {"roberta": PairForm(2, False), "modernbert": PairForm(1, False), "xlm-roberta": PairForm(2, False)}


@pytest.fixture(scope="module", params=MAKE)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer") / request.param
    path.mkdir()
    MAKE[request.param]().save(str(path / "tokenizer.json"))
    return path


def theirs(folder: Path) -> Any:
    names = NAMES if folder.name != "modernbert" else {role: f"[{role[:-6].upper()}]" for role in NAMES}
    return PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), **names)


def test_ids_equal_those_of_transformers(folder: Path) -> None:
    expected = theirs(folder)(TEXTS, add_special_tokens=False, split_special_tokens=True)["input_ids"]
    assert [ids.tolist() for ids in TextTokenizer.load(folder).encode(TEXTS)] == expected


def test_pairs_are_those_of_the_post_processor(folder: Path) -> None:
    tokenizer = TextTokenizer.load(folder)
    assert tokenizer.pair == PAIRS[folder.name]
    packer = Packer(("t",), tokenizer.cls_id, tokenizer.sep_id, 24, tokenizer.masker, pair=tokenizer.pair)
    first, second = TEXTS[:300], TEXTS[300:600]
    expected = theirs(folder)(
        first, second, max_length=24, truncation="longest_first", split_special_tokens=True, return_token_type_ids=True
    )
    examples = list(zip(tokenizer.encode(first), tokenizer.encode(second), strict=True))
    stream = packer.pack([Part("t", examples)])
    rows = [row.tolist() for row in stream.token_ids_T.split(list(stream.layout.lengths))]
    assert rows == expected["input_ids"]
    assert not stream.segment_ids_T.any()
    assert not any(map(any, expected["token_type_ids"]))
    singles = packer.pack([Part("t", [(ids,) for ids in tokenizer.encode(first)])])
    expected = theirs(folder)(first, max_length=24, truncation=True, split_special_tokens=True)["input_ids"]
    assert [row.tolist() for row in singles.token_ids_T.split(list(singles.layout.lengths))] == expected
    for form in (InputFormat(), InputFormat("both")):  # one example after another, and the number of tokens
        pieces = [
            np.concatenate(one).tolist() for texts in examples for one, _ in packer.sequences(texts, form.reading)
        ]
        stream = packer.pack([packer.part("t", examples, form)])
        assert [row.tolist() for row in stream.token_ids_T.split(list(stream.layout.lengths))] == pieces
        assert packer.lengths(Texts.of(examples).lengths_NW, form).sum() == len(stream.token_ids_T)


def test_special_ids_are_read_from_the_file(folder: Path) -> None:
    tokenizer, expected = TextTokenizer.load(folder), theirs(folder)
    found = [tokenizer.cls_id, tokenizer.sep_id, tokenizer.pad_id, tokenizer.mask_id, tokenizer.unk_id]
    roles = ("cls", "sep", "pad", "mask", "unk")
    assert found == [getattr(expected, f"{role}_token_id") for role in roles]
    assert set(tokenizer.masker.special_ids) == set(found)
    (forged,) = tokenizer.encode([" ".join(getattr(expected, f"{role}_token") for role in roles)])
    assert not set(forged.tolist()) & set(found[:-1])


def test_a_saved_tokenizer_opens_in_transformers(folder: Path, tmp_path: Path) -> None:
    tokenizer = TextTokenizer.load(folder)
    tokenizer.save(tmp_path, 128)
    opened, again = AutoTokenizer.from_pretrained(tmp_path), TextTokenizer.load(tmp_path)
    expected = theirs(folder)(TEXTS[:500], TEXTS[500:1000])["input_ids"]
    assert opened(TEXTS[:500], TEXTS[500:1000])["input_ids"] == expected
    assert opened.model_max_length == 128
    assert opened.pad_token_id == again.pad_id == tokenizer.pad_id
    assert again.pair == tokenizer.pair
    assert again.fingerprint == tokenizer.fingerprint


def test_a_token_starts_at_its_first_letter(folder: Path) -> None:
    """The space before a word is part of the token; the tag of the word must be too."""
    tokenizer = TextTokenizer.load(folder)
    text, words = (
        "the book  was good",
        [TaggedWord(0, "D"), TaggedWord(4, "N"), TaggedWord(10, "V"), TaggedWord(14, "J")],
    )
    ((_, starts),) = tokenizer.encode_with_starts([text])
    assert {0, 4, 10, 14} <= set(starts.tolist())
    (tagged,) = encode_tagged(tokenizer, [text], [words], {"D": 1, "N": 2, "V": 3, "J": 4})
    assert sorted(set(tagged.tags.tolist())) == [1, 2, 3, 4]
    assert tagged.tags.tolist() == sorted(tagged.tags.tolist())


@pytest.mark.parametrize(
    "pair", ["[CLS] $A [SEP] $B", "$A [SEP] $B [SEP]", "[CLS] $A $B [SEP]", "[CLS] $B [SEP] $A [SEP]"]
)
def test_another_template_is_refused(pair: str, tmp_path: Path) -> None:
    tokenizer = modern_bpe()
    content = json.loads(tokenizer.to_str())
    parts = [
        {"Sequence": {"id": part[1], "type_id": 0}} if part[0] == "$" else {"SpecialToken": {"id": part, "type_id": 0}}
        for part in pair.split()
    ]
    content["post_processor"]["pair"] = parts
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match=r"post_processor must put one token before a text"):
        TextTokenizer.load(tmp_path)


def test_mpnet_from_a_vocabulary(tmp_path: Path) -> None:
    """Its vocabulary has BERT's special tokens too, which it does not use."""
    words = [
        "<s>",
        "<pad>",
        "</s>",
        "<unk>",
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        "the",
        "book",
        "##s",
        "<mask>",
    ]
    (tmp_path / "vocab.txt").write_text("\n".join(words) + "\n")
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "MPNetTokenizer"}')
    tokenizer = TextTokenizer.load(tmp_path)
    found = [tokenizer.cls_id, tokenizer.sep_id, tokenizer.pad_id, tokenizer.mask_id, tokenizer.unk_id]
    assert found == [0, 2, 1, 12, 5]
    assert tokenizer.pair == PairForm(2, second_segment=False)
    assert tokenizer.encode(["the books x"])[0].tolist() == [9, 10, 11, 5]
