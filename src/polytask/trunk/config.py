"""A BERT's config.json <-> its shape, in Hugging Face's words. Knows numbers; knows no weights."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from polytask.trunk.bert import ACTIVATIONS, BertShape
from polytask.types import UserError

CONFIG = "config.json"
NEEDED = "an encoder's folder holds config.json, model.safetensors and tokenizer.json or vocab.txt"

# A field of BertShape, and its key in config.json.
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
    """The shape that a folder's config.json describes; refuses what this trunk would compute wrongly."""
    path = folder / CONFIG
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path} is missing: {NEEDED}") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read as JSON: {error}") from None
    if not isinstance(config, dict):
        raise UserError(f"{path} does not hold a JSON object")
    _check_kind(path, config)
    default = asdict(BertShape())
    shape = BertShape(**{ours: config.get(key, default[ours]) for ours, key in SHAPE_KEYS.items()})
    _check_numbers(path, shape)
    return shape


def _check_kind(path: Path, config: dict[str, Any]) -> None:
    architectures = config.get("architectures") or []
    kind = config.get("model_type") or ("bert" if any(str(a).startswith("Bert") for a in architectures) else None)
    if kind != "bert":
        raise UserError(
            f"{path}: model_type is {kind!r}, but polytask's trunk is a BERT (model_type 'bert'); "
            "choose a BERT-architecture encoder: minilm, bert-base-uncased, BAAI/bge-small-en-v1.5 ..."
        )
    allowed = {"position_embedding_type": "absolute", "is_decoder": False, "add_cross_attention": False}
    for key, value in allowed.items():
        if config.get(key, value) != value:
            raise UserError(f"{path}: {key} is {config[key]!r}, and only {value!r} is supported")


def _check_numbers(path: Path, shape: BertShape) -> None:
    for ours, key in SHAPE_KEYS.items():
        value, default = getattr(shape, ours), getattr(BertShape(), ours)
        if ours == "activation":
            wrong = "" if value in list(ACTIVATIONS) else f"one of {', '.join(sorted(ACTIVATIONS))}"
        elif isinstance(default, int):
            wrong = "" if type(value) is int and value > 0 else "a whole number above 0"
        elif ours in ("dropout", "attention_dropout"):
            wrong = "" if type(value) in (int, float) and 0 <= value < 1 else "a number from 0 to below 1"
        else:
            wrong = "" if type(value) in (int, float) and value > 0 else "a number above 0"
        if wrong:
            raise UserError(f"{path}: {key} is {value!r}, and must be {wrong}")
    if shape.hidden % shape.heads:
        raise UserError(f"{path}: hidden_size {shape.hidden} cannot be split into {shape.heads} attention heads")


def config_of(shape: BertShape, pad_id: int = 0) -> dict[str, Any]:
    """The config.json with which transformers' BertModel has this shape."""
    values = asdict(shape)
    kind = {
        "architectures": ["BertModel"],
        "model_type": "bert",
        "position_embedding_type": "absolute",
        "pad_token_id": pad_id,
    }
    return kind | {key: values[ours] for ours, key in SHAPE_KEYS.items()}
