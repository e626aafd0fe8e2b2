"""config.json of a BERT becomes a shape and back; other architectures are refused by field."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import BertConfig

from polytask.encoders.bert import BertShape
from polytask.pretrained.config import SHAPE_KEYS, config_of, read_shape
from polytask.types import UserError

TINY = BertShape(layers=2, hidden=16, heads=2, ffn=24, vocabulary=50, positions=32, dropout=0.2, norm_eps=1e-7)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(config_of(TINY)))
    return tmp_path


def configure(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))


def test_a_shape_survives_a_round_trip(folder: Path) -> None:
    assert read_shape(folder) == TINY


def test_the_defaults_are_those_of_transformers() -> None:
    theirs, ours = BertConfig(), config_of(BertShape())
    assert {key: getattr(theirs, key) for key in SHAPE_KEYS.values()} == {key: ours[key] for key in SHAPE_KEYS.values()}


def test_a_folder_without_a_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"config\.json is missing: an encoder's folder must contain"):
        read_shape(tmp_path)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "deberta"}, "model_type: must be one of bert, roberta, .*; found 'deberta'"),
        ({"model_type": "gpt2"}, "model_type: must be one of bert, roberta, .*; found 'gpt2'"),
        ({"model_type": None, "architectures": ["XLNetModel"]}, "model_type: must be one of bert, .*; found None"),
        (
            {"position_embedding_type": "relative_key"},
            "position_embedding_type: must be 'absolute', found 'relative_key'",
        ),
        ({"is_decoder": True}, "is_decoder: must be False, found True"),
        ({"hidden_act": "swish2"}, "hidden_act: must be one of gelu"),
        ({"hidden_act": ["gelu"]}, "hidden_act: must be a string"),
        ({"num_hidden_layers": 0}, r"num_hidden_layers: must be in \[1, 1000\], found 0"),
        ({"hidden_size": "16"}, "hidden_size: must be an integer, found '16'"),
        ({"vocab_size": True}, "vocab_size: must be an integer, found True"),
        ({"hidden_dropout_prob": 1.0}, r"hidden_dropout_prob: must be in \[0, 1\), found 1.0"),
        ({"layer_norm_eps": None}, "layer_norm_eps: must be a number, found None"),
        ({"num_attention_heads": 3}, "num_attention_heads: must divide hidden_size, which is 16; found 3"),
    ],
)
def test_an_unsupported_model_is_refused_by_field(folder: Path, changes: dict[str, Any], words: str) -> None:
    configure(folder, **changes)
    with pytest.raises(UserError, match=f"config.json: {words}"):
        read_shape(folder)


def test_fields_that_are_left_out_have_their_defaults(folder: Path) -> None:
    (folder / "config.json").write_text('{"architectures": ["BertModel"]}')
    assert read_shape(folder) == BertShape()


@pytest.mark.parametrize("text", ["", "{", "[]", "\x00"])
def test_an_invalid_config_is_refused_by_name(folder: Path, text: str) -> None:
    (folder / "config.json").write_text(text)
    with pytest.raises(UserError, match=r"config.json"):
        read_shape(folder)
