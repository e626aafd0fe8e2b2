"""Converts between Hugging Face's config.json of a BERT and a BertShape."""

from dataclasses import asdict
from pathlib import Path
from typing import Any, get_type_hints

from polytask.disk.json_files import read_json
from polytask.disk.records import convert
from polytask.encoders.bert import ACTIVATIONS, BertShape
from polytask.types import UserError

CONFIG = "config.json"
NEEDED = "an encoder's folder must contain config.json, model.safetensors, and tokenizer.json or vocab.txt"

# Fields of BertShape and their keys in config.json.
SHAPE_KEYS = {
    "layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "ffn": "intermediate_size",
    "vocabulary": "vocab_size",
    "positions": "max_position_embeddings",
    "segments": "type_vocab_size",
    "norm_eps": "layer_norm_eps",
    "activation": "hidden_act",
    "dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
    "initializer_range": "initializer_range",
}


def read_shape(folder: Path) -> BertShape:
    """Reads the shape from a folder's config.json; raises a UserError if the model is not a supported BERT."""
    path = folder / CONFIG
    if not path.is_file():
        raise UserError(f"{path} is missing: {NEEDED}")
    config = read_json(path)
    _check_kind(path, config)
    default, kinds = asdict(BertShape()), get_type_hints(BertShape, include_extras=True)
    values = {ours: config.get(key, default[ours]) for ours, key in SHAPE_KEYS.items()}
    shape = BertShape(**{ours: convert(v, kinds[ours], f"{path}: {SHAPE_KEYS[ours]}") for ours, v in values.items()})
    _check_numbers(path, shape)
    return shape


def _check_kind(path: Path, config: dict[str, Any]) -> None:
    named = config.get("architectures")
    architectures = named if isinstance(named, list) else []
    kind = config.get("model_type") or ("bert" if any(str(a).startswith("Bert") for a in architectures) else None)
    if kind != "bert":
        raise UserError(
            f"{path}: model_type: must be 'bert', found {kind!r}; "
            "choose an encoder with the BERT architecture: minilm, bert-base-uncased, BAAI/bge-small-en-v1.5 ..."
        )
    allowed = {"position_embedding_type": "absolute", "is_decoder": False, "add_cross_attention": False}
    for key, value in allowed.items():
        if config.get(key, value) != value:
            raise UserError(f"{path}: {key}: must be {value!r}, found {config[key]!r}")


def _check_numbers(path: Path, shape: BertShape) -> None:
    if shape.activation not in ACTIVATIONS:
        known = ", ".join(sorted(ACTIVATIONS))
        raise UserError(f"{path}: hidden_act: must be one of {known}; found {shape.activation!r}")
    if shape.hidden % shape.heads:
        raise UserError(
            f"{path}: num_attention_heads: must divide hidden_size, which is {shape.hidden}; found {shape.heads}"
        )


def config_of(shape: BertShape, pad_id: int = 0) -> dict[str, Any]:
    """The content of config.json for transformers' BertModel."""
    values = asdict(shape)
    kind = {
        "architectures": ["BertModel"],
        # Without labels, transformers' pipelines raise an error instead of predicting with a random classifier.
        "id2label": {},
        "label2id": {},
        "model_type": "bert",
        "position_embedding_type": "absolute",
        "pad_token_id": pad_id,
    }
    return kind | {key: values[ours] for ours, key in SHAPE_KEYS.items()}
