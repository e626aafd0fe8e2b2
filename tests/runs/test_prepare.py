"""Texts as long as `max_length` allows are read to their end, whatever the tokenizer's files or the cache hold."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from transformers import AutoModel, AutoTokenizer

from polytask import load, prepare, read_recipe
from polytask.encoders.bert import Bert, BertShape
from polytask.pretrained.weights import save_encoder
from polytask.recipe.records import Recipe
from polytask.runs.bundle import save_bundle
from polytask.runs.prepare import describe_task
from polytask.text.packing import Part
from polytask.text.tokenizer import TextTokenizer

LENGTHS = 600, 1021, 1022, 1023, 3000
LONG = BertShape(layers=1, hidden=16, heads=2, ffn=16, positions=1024)
UNTRAINED = {"layers": 1, "hidden": 16, "heads": 2, "ffn": 16, "positions": 1024}


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Texts whose tokens are words of one letter each; the last word of a text decides its class."""
    monkeypatch.setenv("POLYTASK_CACHE", str(tmp_path / "cache"))
    rows = [(" ".join(["a"] * (n - 1) + [last]), last) for n in LENGTHS for last in ("b", "c")]
    lines = "".join(f"{text},{label}\n" for text, label in rows)
    for split in ("train", "dev"):
        (tmp_path / f"{split}.csv").write_text("text,label\n" + lines)
    return tmp_path


def recipe(data: Path, encoder: Any, max_length: int) -> Recipe:
    task = {"kind": "classes", "text": "text", "label": "label", "train": "train.csv", "dev": "dev.csv"}
    content = {"tasks": {"t": task}, "encoder": encoder, "max_length": max_length}
    (data / "recipe.yaml").write_text(json.dumps(content))
    return read_recipe(data / "recipe.yaml")


def test_long_sequences_are_read_checked_saved_and_answered_whole(data: Path) -> None:
    shorter = prepare(recipe(data, UNTRAINED, 128))  # fills the token cache first
    assert describe_task(shorter.tasks["t"], shorter).data["train"]["lengths"]["truncated"] == 2 * 5
    prepared = prepare(recipe(data, UNTRAINED, 1024))
    train = prepared.tasks["t"].splits["train"]
    kept = [len(train.tokens(i)[0]) for i in range(len(train))]
    assert kept == [min(n, 1024) for n in LENGTHS for _ in range(2)]
    # Two special tokens leave room for 1,022.
    assert describe_task(prepared.tasks["t"], prepared).data["train"]["lengths"]["truncated"] == 2 * 2
    assert any("longer than max_length (1024 tokens)" in str(finding) for finding in prepared.findings())
    stream = prepared.packer.pack([Part("t", [train.tokens(i) for i in range(len(train))])])
    assert stream.layout.lengths == tuple(min(n + 2, 1024) for n in LENGTHS for _ in range(2))

    save_bundle(prepared.bundle, data / "run" / "model")
    theirs = AutoTokenizer.from_pretrained(data / "run" / "model")
    assert theirs.model_max_length == 1024
    text = " ".join(["a"] * 1021)
    assert theirs(text + " b", truncation=True)["input_ids"] == stream.token_ids_T[602 * 2 + 1023 * 2 :][:1024].tolist()
    model = load(data / "run")
    read, cut = (model.predict("t", [f"{more} b", f"{more} c"]) for more in (text, text + " a"))
    assert read[0].probabilities != read[1].probabilities  # they differ in their last word, the 1,022nd
    assert cut[0].probabilities == cut[1].probabilities


def test_the_maximum_length_of_an_encoders_tokenizer_is_ignored(data: Path) -> None:
    """As the files of MiniLM, which say 128."""
    encoder = data / "encoder"
    tokenizer = prepare(recipe(data, UNTRAINED, 128)).tokenizer
    save_encoder(Bert(LONG), encoder)
    tokenizer.save(encoder, positions=128)
    raw = Tokenizer.from_file(str(encoder / "tokenizer.json"))
    raw.enable_padding(length=128)
    raw.enable_truncation(128)
    raw.save(str(encoder / "tokenizer.json"))
    prepared = prepare(recipe(data, str(encoder), 1024))
    assert prepared.tasks["t"].splits["train"].store.lengths().max() == 1024
    save_bundle(prepared.bundle, data / "model")
    assert AutoTokenizer.from_pretrained(data / "model").model_max_length == 1024


def test_the_saved_encoder_has_the_tokenizers_pad_id(data: Path) -> None:
    encoder = data / "encoder"
    encoder.mkdir()
    tokens = [*"abc", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[PAD]"]
    (encoder / "vocab.txt").write_text("\n".join(tokens) + "\n")
    save_encoder(Bert(LONG), encoder, TextTokenizer.load(encoder).pad_id)
    save_bundle(prepare(recipe(data, str(encoder), 64)).bundle, data / "model")
    for folder in (encoder, data / "model"):
        assert AutoModel.from_pretrained(folder).config.pad_token_id == 7
    assert AutoTokenizer.from_pretrained(data / "model").pad_token_id == 7
