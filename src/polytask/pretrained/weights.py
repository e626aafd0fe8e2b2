"""Weights on disk <-> a Bert, in Hugging Face's files and names. Knows no network and no cache: see encoders.py.

Reads safetensors only. Nothing is ever unpickled, so opening somebody's weights cannot run somebody's code.
"""

import hashlib
import json
import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from polytask.disk.atomic import atomic_file
from polytask.disk.json_files import read_json
from polytask.disk.records import mapping
from polytask.encoders.bert import Bert, BertShape
from polytask.pretrained.config import CONFIG, NEEDED, config_of, read_shape
from polytask.pretrained.header import FLOATS, Entry, check_finite, read_header
from polytask.types import UserError

__all__ = [
    "empty_encoder",
    "fingerprints",
    "load_encoder",
    "load_tensors",
    "pickle_refused",
    "read_shape",
    "save_encoder",
    "tensor_shapes",
    "weight_files",
]

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"

# Our modules, and Hugging Face's: N is the layer's number.
MODULES = {
    "words": "embeddings.word_embeddings",
    "positions": "embeddings.position_embeddings",
    "segments": "embeddings.token_type_embeddings",
    "norm": "embeddings.LayerNorm",
    "layers.N.attention.query": "encoder.layer.N.attention.self.query",
    "layers.N.attention.key": "encoder.layer.N.attention.self.key",
    "layers.N.attention.value": "encoder.layer.N.attention.self.value",
    "layers.N.attention.output": "encoder.layer.N.attention.output.dense",
    "layers.N.attention_norm": "encoder.layer.N.attention.output.LayerNorm",
    "layers.N.up": "encoder.layer.N.intermediate.dense",
    "layers.N.down": "encoder.layer.N.output.dense",
    "layers.N.ffn_norm": "encoder.layer.N.output.LayerNorm",
    "pooler": "pooler.dense",
}
BUFFERS = {"embeddings.position_ids", "embeddings.token_type_ids"}  # saved by old versions; they hold no weights
OLD_ENDINGS = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}

log = logging.getLogger(__name__)


def hugging_face_name(name: str) -> str:
    """The name that one of our parameters has in a Hugging Face file."""
    module, _, parameter = name.rpartition(".")
    parts = module.split(".")
    number = parts[1] if parts[0] == "layers" else ""
    if number:
        parts[1] = "N"
    return f"{MODULES['.'.join(parts)].replace('.N.', f'.{number}.')}.{parameter}"


def weight_files(folder: Path) -> tuple[Path, ...]:
    """The safetensors files of a folder: one, or the parts that an index names."""
    index = folder / INDEX
    if (folder / WEIGHTS).is_file():
        return (folder / WEIGHTS,)
    if not index.is_file():
        if any(folder.glob("*.bin")):
            raise pickle_refused(str(folder))
        raise UserError(f"{folder / WEIGHTS} is missing: {NEEDED}")
    named: Mapping[str, Any] = mapping(read_json(index).get("weight_map"), f"{index}: weight_map")
    parts = sorted(set(map(str, named.values())))
    for part in parts:
        if Path(part).name != part or not part.endswith(".safetensors"):
            raise UserError(f"{index} names {part!r}, which is not a safetensors file beside it")
        if not (folder / part).is_file():
            raise UserError(f"{folder / part} is missing, and {INDEX} names it; download the encoder again")
    return tuple(folder / part for part in parts)


def pickle_refused(where: str) -> UserError:
    """What to say of weights that exist only as a pickle."""
    return UserError(
        f"{where} has its weights only as a .bin file. Such files are pickles, which can run any code when they are "
        f"opened, so polytask does not open them. Use a revision of the encoder with {WEIGHTS}, or, where you trust "
        "it, convert it once with transformers:\n"
        f"    model = transformers.AutoModel.from_pretrained({where!r})\n"
        '    model.save_pretrained("converted", safe_serialization=True)\n'
        "and copy config.json and the tokenizer's files beside it."
    )


def load_encoder(folder: Path, dropout: float | None = None, attention_dropout: float | None = None) -> Bert:
    """The folder's encoder in float32. Where the file has no pooler, it starts untrained, and that is logged."""
    shape = read_shape(folder)
    shape = replace(
        shape,
        dropout=shape.dropout if dropout is None else dropout,
        attention_dropout=shape.attention_dropout if attention_dropout is None else attention_dropout,
    )
    headers = {path: read_header(path) for path in weight_files(folder)}
    wanted = _wanted(shape, headers)  # the files are known to hold this shape before any memory is taken for it
    found: dict[str, Tensor] = {}
    for path, header in headers.items():
        found.update(_read_file(path, header, wanted))
    missing = sorted(wanted.keys() - found.keys())
    if missing == ["pooler.dense.bias", "pooler.dense.weight"]:
        log.warning("%s has no pooler: it starts untrained", folder)
        found["pooler.dense.weight"] = nn.init.normal_(
            torch.empty(shape.hidden, shape.hidden), std=shape.initializer_range
        )
        found["pooler.dense.bias"] = torch.zeros(shape.hidden)
    elif missing:
        raise UserError(
            f"{folder} has no tensor {missing[0]} ({len(missing)} of {len(wanted)} are missing): the weights do not "
            f"fit {CONFIG}, or are not those of a BERT; download the encoder again"
        )
    encoder = empty_encoder(shape)
    ours = {name: found[hugging_face_name(name)] for name in encoder.state_dict()}
    encoder.load_state_dict(ours, assign=True)
    return encoder


def load_tensors(folder: Path, names: Mapping[str, str]) -> dict[str, Tensor]:
    """Tensors of an encoder's files that the encoder does not use, by their new names; empty if one is missing."""
    found: dict[str, Tensor] = {}
    for path in weight_files(folder):
        try:
            with safe_open(path, framework="pt") as file:
                keys = {_plain_name(key): key for key in file.keys()}  # noqa: SIM118  (no mapping)
                found |= {own: file.get_tensor(keys[name]).float() for own, name in names.items() if name in keys}
        except (SafetensorError, OSError) as error:
            raise UserError(f"{path} is not a whole safetensors file ({error}); download the encoder again") from None
    return found if len(found) == len(names) else {}


class _NoStart(TorchFunctionMode):
    """Leaves out torch.nn.init: time well saved, and no random numbers drawn, where weights come from a file."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__module__", "") == "torch.nn.init":
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


def empty_encoder(shape: BertShape) -> Bert:
    """An encoder whose weights are whatever the memory held: to be filled, or counted."""
    # Not on the meta device, whose random operations take a second to import.
    with _NoStart():
        return Bert(shape)


def tensor_shapes(shape: BertShape) -> dict[str, tuple[int, ...]]:
    """The parameters of a Bert of this shape, by their names in a Hugging Face file, without making one."""
    hidden, ffn = shape.hidden, shape.ffn
    rows = {"words": shape.vocabulary, "positions": shape.positions, "segments": shape.segments}
    maps = {"layers.N.up": (ffn, hidden), "layers.N.down": (hidden, ffn)}
    found: dict[str, tuple[int, ...]] = {}
    for module in MODULES:
        for layer in range(shape.layers) if ".N." in module else (0,):
            name = module.replace(".N.", f".{layer}.")
            if module in rows:
                found[f"{name}.weight"] = (rows[module], hidden)
            else:
                weight = (hidden,) if module.endswith("norm") else maps.get(module, (hidden, hidden))
                found |= {f"{name}.weight": weight, f"{name}.bias": weight[:1]}
    return {hugging_face_name(name): size for name, size in found.items()}


def _wanted(shape: BertShape, headers: Mapping[Path, Mapping[str, Entry]]) -> dict[str, tuple[int, ...]]:
    """The tensors an encoder of this shape needs, when the files do not contradict it."""
    wanted = tensor_shapes(shape)
    for path, header in headers.items():
        for key, name in _names(header).items():
            if name in wanted:
                _check_entry(path, key, header[key], wanted[name])
            elif name.startswith(("embeddings.", "encoder.layer.")) and name not in BUFFERS:
                raise UserError(f"{path} has a tensor {key} that {CONFIG} leaves no place for: they are not a pair")
    return wanted


def _names(header: Mapping[str, Entry]) -> dict[str, str]:
    """The plain BertModel name of each tensor of a file; those of heads are left out."""
    prefix = "bert." if any(key.startswith("bert.") for key in header) else ""
    return {key: _plain_name(key.removeprefix(prefix)) for key in header if key.startswith(prefix)}


def _check_entry(path: Path, key: str, entry: Entry, shape: tuple[int, ...]) -> None:
    if entry.shape != shape:
        raise UserError(f"{path}: tensor {key} has shape {list(entry.shape)}, and {CONFIG} makes it {list(shape)}")
    if entry.dtype not in FLOATS:
        raise UserError(f"{path}: tensor {key} is {entry.dtype}; quantized weights are not supported")


def _read_file(path: Path, header: Mapping[str, Entry], wanted: Mapping[str, Any]) -> dict[str, Tensor]:
    """The file's tensors that an encoder wants, by their plain BertModel names; heads and buffers are left out."""
    found: dict[str, Tensor] = {}
    try:
        with safe_open(path, framework="pt") as file:
            for key, name in _names(header).items():
                if name in wanted:
                    # A copy, because the file's own memory changes when the file does.
                    found[name] = file.get_tensor(key).to(torch.float32, copy=True)
                    check_finite(path, key, found[name])
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path} is not a whole safetensors file ({error}); download the encoder again") from None
    return found


def _plain_name(name: str) -> str:
    for old, new in OLD_ENDINGS.items():
        name = name.removesuffix(old) + new if name.endswith(old) else name
    return name


def save_encoder(encoder: Bert, folder: Path, pad_id: int = 0) -> None:
    """Writes config.json and model.safetensors for transformers' BertModel; each file appears whole or not at all.

    `pad_id` is that of the tokenizer: the encoder itself never sees padding.
    """
    tensors = {hugging_face_name(name): tensor.cpu().contiguous() for name, tensor in encoder.state_dict().items()}
    with atomic_file(folder / WEIGHTS) as weights, atomic_file(folder / CONFIG) as config:
        save_file(tensors, weights, metadata={"format": "pt"})
        config.write_text(json.dumps(config_of(encoder.shape, pad_id), indent=2) + "\n", encoding="utf-8")


def fingerprints(encoder: Bert) -> tuple[str, str]:
    """SHA-256 of the encoder's weights, and of its pooler by itself: where a file has none, each seed makes one.

    Of names, shapes and float32 bytes, in the order of the names, and of the numbers that no tensor shows. Dropout is
    left out: a frozen encoder is the encoder it was, whatever it was trained with.
    """
    shape = encoder.shape
    encoder_digest = hashlib.sha256(f"{shape.heads} {shape.norm_eps} {shape.activation}\n".encode())
    pooler_digest = hashlib.sha256()
    for name, tensor in sorted(encoder.state_dict().items()):
        digest = pooler_digest if name.startswith("pooler.") else encoder_digest
        digest.update(f"{name} {list(tensor.shape)}\n".encode())
        digest.update(tensor.float().cpu().contiguous().numpy().astype("<f4", copy=False).data)
    return encoder_digest.hexdigest(), pooler_digest.hexdigest()
