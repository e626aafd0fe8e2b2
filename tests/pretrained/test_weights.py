"""Weights from disk and back, against transformers, and everything that is refused by name."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModel, BertConfig, BertForMaskedLM, BertModel

from polytask.encoders.bert import Bert, BertShape
from polytask.pretrained.config import config_of
from polytask.pretrained.weights import MODULES, hugging_face_name, load_encoder, load_tensors, save_encoder
from polytask.types import UserError

TINY = BertShape(layers=2, hidden=16, heads=2, ffn=24, vocabulary=50, positions=32, dropout=0.2, norm_eps=1e-7)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    torch.manual_seed(3)
    save_encoder(Bert(TINY), tmp_path / "encoder")
    return tmp_path / "encoder"


def rewrite(folder: Path, tensors: dict[str, Tensor]) -> None:
    save_file(tensors, folder / "model.safetensors")


def assert_equal(one: Bert, two: Bert) -> None:
    for name, tensor in two.state_dict().items():
        assert torch.equal(one.state_dict()[name], tensor), name


def test_the_table_covers_every_parameter_once() -> None:
    ours = list(Bert(TINY).state_dict())
    theirs = BertModel(BertConfig(**config_of(TINY))).state_dict()
    assert sorted(hugging_face_name(name) for name in ours) == sorted(theirs)
    assert len(set(MODULES.values())) == len(MODULES)


def test_the_two_digit_layers_keep_their_numbers() -> None:
    assert hugging_face_name("layers.11.attention.query.bias") == "encoder.layer.11.attention.self.query.bias"


def test_round_trip_is_exact(folder: Path) -> None:
    torch.manual_seed(3)
    original = Bert(TINY)
    loaded = load_encoder(folder)
    assert loaded.shape == TINY
    assert_equal(loaded, original)
    assert all(parameter.requires_grad and parameter.dtype == torch.float32 for parameter in loaded.parameters())


def test_loading_draws_no_random_numbers(folder: Path) -> None:
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    load_encoder(folder)
    assert torch.equal(torch.rand(3), expected)


def test_a_loaded_encoder_survives_its_file(folder: Path) -> None:
    loaded = load_encoder(folder)
    before = {name: tensor.clone() for name, tensor in loaded.state_dict().items()}
    path = folder / "model.safetensors"
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.write(b"\0" * size)
    for name, tensor in loaded.state_dict().items():
        assert torch.equal(tensor, before[name])


def test_dropout_can_be_set(folder: Path) -> None:
    loaded = load_encoder(folder, dropout=0.0, attention_dropout=0.3)
    assert (loaded.shape.dropout, loaded.shape.attention_dropout) == (0.0, 0.3)
    assert load_encoder(folder).shape.dropout == 0.2


def test_transformers_opens_what_we_save(folder: Path) -> None:
    model, info = AutoModel.from_pretrained(folder, output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert type(model) is BertModel
    assert (model.config.layer_norm_eps, model.config.hidden_dropout_prob) == (1e-7, 0.2)
    ours = {hugging_face_name(name): tensor for name, tensor in load_encoder(folder).state_dict().items()}
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, ours[name]), name


def test_the_pad_id_is_the_tokenizers(tmp_path: Path) -> None:
    save_encoder(Bert(TINY), tmp_path, pad_id=7)
    assert AutoModel.from_pretrained(tmp_path).embeddings.word_embeddings.padding_idx == 7


def test_we_open_what_transformers_saves(tmp_path: Path) -> None:
    theirs = BertForMaskedLM(BertConfig(**config_of(TINY)))  # prefix bert., a head cls.*, and no pooler
    theirs.save_pretrained(tmp_path)
    loaded = load_encoder(tmp_path)
    state = theirs.bert.state_dict()
    for name, tensor in loaded.state_dict().items():
        if not name.startswith("pooler"):
            assert torch.equal(tensor, state[hugging_face_name(name)])


def test_minilm_survives_a_round_trip(minilm: Path, tmp_path: Path) -> None:
    loaded = load_encoder(minilm)
    save_encoder(loaded, tmp_path)
    assert_equal(load_encoder(tmp_path), loaded)
    kept = load_file(minilm / "model.safetensors")
    kept.pop("embeddings.position_ids")
    assert load_file(tmp_path / "model.safetensors").keys() == kept.keys()


def test_old_names_prefix_heads_and_buffers(folder: Path) -> None:
    expected = load_encoder(folder)
    old = {
        "bert."
        + name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
        for name, tensor in load_file(folder / "model.safetensors").items()
    }
    old["cls.predictions.bias"] = torch.zeros(50)
    old["cls.predictions.transform.LayerNorm.gamma"] = torch.zeros(16)
    old["bert.embeddings.position_ids"] = torch.arange(32)[None]
    rewrite(folder, old)
    assert_equal(load_encoder(folder), expected)


def test_other_tensors_of_an_encoders_file_can_be_loaded(folder: Path) -> None:
    norm = torch.arange(16.0)
    extra = {"cls.predictions.bias": torch.ones(50).half(), "cls.predictions.transform.LayerNorm.gamma": norm}
    rewrite(folder, load_file(folder / "model.safetensors") | extra)
    names = {"c": "cls.predictions.bias", "norm.weight": "cls.predictions.transform.LayerNorm.weight"}
    found = load_tensors(folder, names)
    assert torch.equal(found["c"], torch.ones(50))
    assert found["c"].dtype == torch.float32
    assert torch.equal(found["norm.weight"], norm)  # under its old name, gamma
    assert load_tensors(folder, {**names, "other": "cls.predictions.transform.dense.bias"}) == {}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_precisions_become_float32(folder: Path, dtype: torch.dtype) -> None:
    tensors = {name: tensor.to(dtype) for name, tensor in load_file(folder / "model.safetensors").items()}
    rewrite(folder, tensors)
    for name, tensor in load_encoder(folder).state_dict().items():
        assert tensor.dtype == torch.float32
        assert torch.equal(tensor, tensors[hugging_face_name(name)].float())


def test_parts_named_by_an_index(folder: Path) -> None:
    expected = load_encoder(folder)
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    parts = {"model-00001-of-00002.safetensors": names[:9], "model-00002-of-00002.safetensors": names[9:]}
    for part, own in parts.items():
        save_file({name: tensors[name] for name in own}, folder / part)
    index = {"weight_map": {name: part for part, own in parts.items() for name in own}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert_equal(load_encoder(folder), expected)
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(UserError, match=r"model-00002-of-00002\.safetensors is missing"):
        load_encoder(folder)
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "../elsewhere.safetensors"}}')
    with pytest.raises(UserError, match="must list safetensors files in the same folder"):
        load_encoder(folder)


def test_a_missing_pooler_starts_untrained(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    tensors = {n: t for n, t in load_file(folder / "model.safetensors").items() if not n.startswith("pooler")}
    rewrite(folder, tensors)
    with caplog.at_level(logging.WARNING):
        loaded = load_encoder(folder)
    assert f"{folder} has no pooler" in caplog.text
    assert not loaded.pooler.bias.any()
    assert 0.01 < float(loaded.pooler.weight.detach().std()) < 0.03


def drop(tensors: dict[str, Tensor]) -> None:
    del tensors["encoder.layer.1.output.dense.bias"]


def drop_half_the_pooler(tensors: dict[str, Tensor]) -> None:
    del tensors["pooler.dense.bias"]


def widen(tensors: dict[str, Tensor]) -> None:
    tensors["encoder.layer.0.intermediate.dense.bias"] = torch.zeros(25)


def quantize(tensors: dict[str, Tensor]) -> None:
    tensors["pooler.dense.weight"] = torch.zeros(16, 16, dtype=torch.int8)


def add_layer(tensors: dict[str, Tensor]) -> None:
    tensors["encoder.layer.2.output.dense.bias"] = torch.zeros(16)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (drop, "no tensor encoder.layer.1.output.dense.bias"),
        (drop_half_the_pooler, "no tensor pooler.dense.bias"),
        (widen, r"encoder.layer.0.intermediate.dense.bias: must have the shape \[24\], found \[25\]"),
        (quantize, "pooler.dense.weight is I8; quantized weights"),
        (add_layer, "encoder.layer.2.output.dense.bias does not fit config.json"),
        (dict.clear, "no tensor embeddings.LayerNorm.bias"),
    ],
)
def test_wrong_tensors_are_refused_by_name(folder: Path, change: Any, words: str) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    rewrite(folder, tensors)
    with pytest.raises(UserError, match=words):
        load_encoder(folder)


def test_a_cut_file_is_refused_by_name(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(UserError, match=r"model.safetensors: the safetensors file is damaged"):
        load_encoder(folder)
