"""Converts between Hugging Face's config.json and the shape of an encoder."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, get_type_hints

from polytask.disk.json_files import read_json
from polytask.disk.records import convert, mapping
from polytask.encoders.base import ACTIVATIONS, EncoderShape
from polytask.encoders.bert import BertShape
from polytask.encoders.modern_bert import ModernBertShape
from polytask.pretrained.kinds import KEYS as SHAPE_KEYS
from polytask.pretrained.kinds import KINDS, Kind, kind_of
from polytask.settings import Positive
from polytask.types import UserError

__all__ = ["CONFIG", "NEEDED", "SHAPE_KEYS", "config_of", "read_shape"]

CONFIG = "config.json"
NEEDED = "an encoder's folder must contain config.json, model.safetensors, and tokenizer.json or vocab.txt"
THETAS = {
    "global_theta": ("full_attention", "global_rope_theta"),
    "local_theta": ("sliding_attention", "local_rope_theta"),
}
"""ModernBERT's rotary bases: their place in `rope_parameters`, and their key in older files."""


def read_shape(folder: Path) -> EncoderShape:
    """Reads the shape from a folder's config.json; raises a UserError if the model is not supported."""
    path = folder / CONFIG
    if not path.is_file():
        raise UserError(f"{path} is missing: {NEEDED}")
    config = read_json(path)
    kind = _kind(path, config)
    default, types = asdict(kind.shape), get_type_hints(type(kind.shape), include_extras=True)
    if kind.after_padding or default.get("first_position"):
        default["positions"] += default["first_position"]  # config.json counts the rows of padding too
    values = {ours: config.get(key, default[ours]) for ours, key in kind.keys.items()}
    read = {ours: convert(v, types[ours], f"{path}: {kind.keys[ours]}") for ours, v in values.items()}
    shape = replace(kind.shape, **read)
    if isinstance(shape, BertShape):
        shape = _without_padding_rows(path, config, kind, shape)
    if isinstance(shape, ModernBertShape):
        global_theta, local_theta = (_rotary_base(path, config, name) for name in THETAS)
        every = _global_every(path, config, shape.layers)
        shape = replace(shape, global_theta=global_theta, local_theta=local_theta, global_every=every)
    _check_numbers(path, kind, shape)
    return shape


def _kind(path: Path, config: Mapping[str, Any]) -> Kind:
    named = config.get("architectures")
    architectures = [str(one) for one in named] if isinstance(named, list) else []
    stems = {f"{kind.model}{end}": name for name, kind in KINDS.items() for end in ("Model", "For")}
    guesses = [name for stem, name in stems.items() if any(one.startswith(stem) for one in architectures)]
    name = config.get("model_type") or (guesses[0] if guesses else None)
    if name not in KINDS:
        raise UserError(
            f"{path}: model_type: must be one of {', '.join(KINDS)}; found {name!r}; "
            "choose an encoder with one of these architectures: minilm, bert-base-uncased, roberta-base ..."
        )
    kind = KINDS[name]
    for key, value in kind.required.items():
        if config.get(key, value) != value:
            raise UserError(f"{path}: {key}: must be {value!r}, found {config[key]!r}")
    return kind


def _without_padding_rows(path: Path, config: Mapping[str, Any], kind: Kind, shape: BertShape) -> BertShape:
    """The shape with the number of positions that texts can use."""
    first = shape.first_position
    if kind.after_padding:
        pad_id = config.get("pad_token_id", kind.pad_id)
        if isinstance(pad_id, bool) or not isinstance(pad_id, int) or pad_id < 0:
            raise UserError(f"{path}: pad_token_id: must be an integer of at least 0, found {pad_id!r}")
        first = pad_id + 1
    if first >= shape.positions:
        raise UserError(
            f"{path}: max_position_embeddings: must be above {first}, the number of rows for padding, found "
            f"{shape.positions}"
        )
    return replace(shape, positions=shape.positions - first, first_position=first)


def _rotary_base(path: Path, config: Mapping[str, Any], name: str) -> float:
    layer_type, earlier_key = THETAS[name]
    where = f"{path}: rope_parameters.{layer_type}"
    if config.get("rope_scaling") not in (None, {}, {"rope_type": "default"}):
        raise UserError(f"{path}: rope_scaling: must be left out or null, found {config['rope_scaling']!r:.200}")
    given = mapping(config.get("rope_parameters") or {}, f"{path}: rope_parameters")
    own = mapping(given.get(layer_type) or {}, where)
    if own.get("rope_type", "default") != "default":
        raise UserError(f"{where}.rope_type: must be 'default', found {own['rope_type']!r}")
    value, where = own.get("rope_theta"), f"{where}.rope_theta"
    if "rope_theta" not in own:
        value, where = config.get(earlier_key, getattr(ModernBertShape(), name)), f"{path}: {earlier_key}"
    base: float = convert(value, Positive, where)
    return base


def _global_every(path: Path, config: Mapping[str, Any], layers: int) -> int:
    types = config.get("layer_types")
    if types is None:
        count = get_type_hints(ModernBertShape, include_extras=True)["global_every"]
        every: int = convert(config.get("global_attn_every_n_layers", 3), count, f"{path}: global_attn_every_n_layers")
        return every
    known = types if isinstance(types, list) else []
    full = [index for index, name in enumerate(known) if name == "full_attention"]
    every = full[1] if len(full) > 1 else layers
    if known != _layer_types(layers, every):
        raise UserError(
            f"{path}: layer_types: must be {layers} names with full_attention first and in every n-th layer, and "
            f"sliding_attention between them; found {types!r:.200}"
        )
    return every


def _layer_types(layers: int, every: int) -> list[str]:
    return ["sliding_attention" if index % every else "full_attention" for index in range(layers)]


def _check_numbers(path: Path, kind: Kind, shape: EncoderShape) -> None:
    keys = kind.keys
    if shape.activation not in ACTIVATIONS:
        known = ", ".join(sorted(ACTIVATIONS))
        raise UserError(f"{path}: {keys['activation']}: must be one of {known}; found {shape.activation!r}")
    if shape.hidden % shape.heads:
        raise UserError(
            f"{path}: {keys['heads']}: must divide {keys['hidden']}, which is {shape.hidden}; found {shape.heads}"
        )
    if isinstance(shape, ModernBertShape) and shape.hidden // shape.heads % 2:
        raise UserError(f"{path}: {keys['heads']}: the size of a head, {shape.hidden // shape.heads}, must be even")


def config_of(shape: EncoderShape, pad_id: int = 0) -> dict[str, Any]:
    """The content of config.json for transformers."""
    kind, values = kind_of(shape), asdict(shape)
    if isinstance(shape, BertShape):
        values["positions"] += shape.first_position
        values["embedding"] = shape.embedding_size
        pad_id = shape.first_position - 1 if kind.after_padding else pad_id
    config = {
        "architectures": [f"{kind.model}Model"],
        # Without labels, transformers' pipelines raise an error instead of predicting with a random classifier.
        "id2label": {},
        "label2id": {},
        "model_type": shape.kind,
        **({"position_embedding_type": "absolute"} if "position_embedding_type" in kind.required else {}),
        "pad_token_id": pad_id,
    }
    if isinstance(shape, ModernBertShape):
        config["layer_types"] = _layer_types(shape.layers, shape.global_every)
        config["global_attn_every_n_layers"] = shape.global_every  # transformers before version 5
        config["rope_parameters"] = {
            layer_type: {"rope_type": "default", "rope_theta": values[ours]} for ours, (layer_type, _) in THETAS.items()
        }
        config |= {earlier_key: values[ours] for ours, (_, earlier_key) in THETAS.items()}
    return config | {key: values[ours] for ours, key in kind.keys.items()}
