"""Loads and saves an encoder in Hugging Face's file format, with Hugging Face's tensor names.

Reads safetensors only. Nothing is unpickled, so that loading untrusted weights cannot execute code.
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
from polytask.disk.hashing import remembered_sha256
from polytask.disk.json_files import read_json
from polytask.disk.kept import kept
from polytask.disk.records import mapping
from polytask.encoders.base import Encoder, EncoderShape
from polytask.pretrained.config import CONFIG, NEEDED, config_of, read_shape
from polytask.pretrained.header import FLOATS, Entry, check_finite, damaged, read_header
from polytask.pretrained.kinds import (
    MODULES,
    Kind,
    hugging_face_name,
    kind_of,
    new_encoder,
    padding_rows,
    parameter_shapes,
    tensor_shapes,
)
from polytask.types import UserError

__all__ = [
    "MODULES",
    "empty_encoder",
    "fingerprints",
    "hugging_face_name",
    "load_encoder",
    "load_tensors",
    "pickle_refused",
    "read_shape",
    "save_encoder",
    "tensor_shapes",
    "weight_files",
]

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"

BUFFERS = {"embeddings.position_ids", "embeddings.token_type_ids"}  # old versions saved them; they are not weights
OLD_ENDINGS = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}

log = logging.getLogger(__name__)


def weight_files(folder: Path) -> tuple[Path, ...]:
    """The safetensors files of a folder: a single one, or those that an index lists."""
    index = folder / INDEX
    if (folder / WEIGHTS).is_file():
        return (folder / WEIGHTS,)
    if not index.is_file():
        if any(folder.glob("*.bin")):
            raise pickle_refused(str(folder))
        raise UserError(f"{folder / WEIGHTS} is missing: {NEEDED}")
    listed: Mapping[str, Any] = mapping(read_json(index).get("weight_map"), f"{index}: weight_map")
    parts = sorted(set(map(str, listed.values())))
    for part in parts:
        if Path(part).name != part or not part.endswith(".safetensors"):
            raise UserError(f"{index}: weight_map must list safetensors files in the same folder, found {part!r}")
        if not (folder / part).is_file():
            raise UserError(f"{folder / part} is missing, but {INDEX} lists it; download the encoder again")
    return tuple(folder / part for part in parts)


def pickle_refused(where: str) -> UserError:
    """The error for weights that exist only as a pickle."""
    return UserError(
        f"{where} has its weights only as a .bin file. Such files are pickles, which can execute any code when they "
        f"are loaded, so polytask does not load them. Use a revision of the encoder with {WEIGHTS}, or, if you trust "
        "it, convert it once with transformers:\n"
        f'    transformers.AutoModel.from_pretrained({where!r}).save_pretrained("converted", safe_serialization=True)\n'
        f'    transformers.AutoTokenizer.from_pretrained({where!r}).save_pretrained("converted")\n'
        "The folder converted is then the encoder."
    )


def load_encoder(
    folder: Path, dropout: float | None = None, attention_dropout: float | None = None, keep: bool = False
) -> Encoder:
    """Loads the folder's encoder in float32. If the files have no pooler, it is initialized randomly with a warning.

    `keep`: a process that keeps values between runs (kept.py) reads the files once, and copies the weights.
    """
    shape = read_shape(folder)
    shape = replace(
        shape,
        dropout=shape.dropout if dropout is None else dropout,
        attention_dropout=shape.attention_dropout if attention_dropout is None else attention_dropout,
    )
    kind, expected = kind_of(shape), tensor_shapes(shape)
    if keep:
        files = tuple((str(path.resolve()), remembered_sha256(path)) for path in weight_files(folder))
        own = kept("weights", (files, tuple(expected.items())), lambda: _read_tensors(folder, kind, expected))
        tensors = {name: tensor.clone() for name, tensor in own.items()}
    else:
        tensors = _read_tensors(folder, kind, expected)
    missing = sorted(expected.keys() - tensors.keys())
    if missing == ["pooler.dense.bias", "pooler.dense.weight"]:
        if kind.has_pooler:
            log.warning("%s has no pooler: it is initialized randomly", folder)
        tensors["pooler.dense.weight"] = nn.init.normal_(
            torch.empty(shape.hidden, shape.hidden), std=shape.initializer_range
        )
        tensors["pooler.dense.bias"] = torch.zeros(shape.hidden)
    elif missing:
        raise UserError(
            f"{folder} has no tensor {missing[0]} ({len(missing)} of {len(expected)} are missing): the weights do not "
            f"fit {CONFIG}, or are not those of a {kind.model}; download the encoder again"
        )
    encoder = empty_encoder(shape)
    encoder.load_state_dict(_our_tensors(tensors, shape), assign=True)
    return encoder


def _our_tensors(tensors: Mapping[str, Tensor], shape: EncoderShape) -> dict[str, Tensor]:
    """Tensors by our names. One tensor of a file may be several of ours, and may have rows that no text uses."""
    ours: dict[str, Tensor] = {}
    ends: dict[str, int] = {}
    for name, size in parameter_shapes(shape).items():
        theirs = hugging_face_name(name, shape.kind)
        start = ends.get(theirs, padding_rows(name, shape))
        ends[theirs] = start + size[0]
        whole = tensors[theirs]
        ours[name] = whole if len(whole) == size[0] else whole[start : ends[theirs]].clone()
    return ours


def _their_tensors(encoder: Encoder) -> dict[str, Tensor]:
    """The encoder's tensors by their Hugging Face names, as in Hugging Face's files."""
    pieces: dict[str, list[Tensor]] = {}
    for name, tensor in encoder.state_dict().items():
        own = pieces.setdefault(hugging_face_name(name, encoder.shape.kind), [])
        rows = padding_rows(name, encoder.shape)
        own += [*([tensor.new_zeros(rows, *tensor.shape[1:])] if rows else []), tensor]
    joined = {name: own[0] if len(own) == 1 else torch.cat(own) for name, own in pieces.items()}
    return {name: tensor.cpu().contiguous() for name, tensor in joined.items()}


def load_tensors(folder: Path, names: Mapping[str, str]) -> dict[str, Tensor]:
    """Reads tensors that the encoder itself does not use. `names` maps new names to those in the files.

    The result is empty if one of them is missing.
    """
    tensors: dict[str, Tensor] = {}
    for path in weight_files(folder):
        try:
            with safe_open(path, framework="pt") as file:
                keys = {_current_name(key): key for key in file.keys()}  # noqa: SIM118  (no mapping)
                tensors |= {new: file.get_tensor(keys[name]).float() for new, name in names.items() if name in keys}
        except (SafetensorError, OSError) as error:
            raise damaged(path, error) from None
    return tensors if len(tensors) == len(names) else {}


class _SkipInit(TorchFunctionMode):
    """Skips torch.nn.init inside the context, which saves time and random draws if weights come from a file."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__module__", "") == "torch.nn.init":
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


def empty_encoder(shape: EncoderShape) -> Encoder:
    """An encoder with uninitialized weights."""
    # Not on the meta device, whose random operations take a second to import.
    with _SkipInit():
        return new_encoder(shape)


def _read_tensors(folder: Path, kind: Kind, expected: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """Reads the expected tensors that the folder's files have, after a check of all shapes."""
    headers = {path: read_header(path) for path in weight_files(folder)}
    _check_headers(headers, kind, expected)  # before memory is allocated
    tensors: dict[str, Tensor] = {}
    for path, header in headers.items():
        tensors.update(_read_file(path, header, kind, expected))
    return tensors


def _check_headers(
    headers: Mapping[Path, Mapping[str, Entry]], kind: Kind, expected: Mapping[str, tuple[int, ...]]
) -> None:
    """Raises a UserError if the files do not have the expected shapes."""
    starts = tuple({theirs.partition("N.")[0] if "N." in theirs else "embeddings." for theirs in kind.modules.values()})
    for path, header in headers.items():
        for key, name in _names(header, kind).items():
            if name in expected:
                _check_entry(path, key, header[key], expected[name])
            elif name.startswith(starts) and name not in BUFFERS:
                raise UserError(f"{path}: tensor {key} does not fit {CONFIG}; download the encoder again")


def _names(header: Mapping[str, Entry], kind: Kind) -> dict[str, str]:
    """The name of each tensor of a file in a model without a head; without those of heads."""
    prefix = kind.prefix if any(key.startswith(kind.prefix) for key in header) else ""
    return {key: _current_name(key.removeprefix(prefix)) for key in header if key.startswith(prefix)}


def _check_entry(path: Path, key: str, entry: Entry, shape: tuple[int, ...]) -> None:
    if entry.shape != shape:
        raise UserError(f"{path}: tensor {key}: must have the shape {list(shape)}, found {list(entry.shape)}")
    if entry.dtype not in FLOATS:
        raise UserError(f"{path}: tensor {key} is {entry.dtype}; quantized weights are not supported")


def _read_file(path: Path, header: Mapping[str, Entry], kind: Kind, expected: Mapping[str, Any]) -> dict[str, Tensor]:
    """Reads the file's expected tensors by their names without a prefix; others (heads, buffers) are ignored."""
    tensors: dict[str, Tensor] = {}
    try:
        with safe_open(path, framework="pt") as file:
            for key, name in _names(header, kind).items():
                if name in expected:
                    # A copy, because the file is memory-mapped and may change.
                    tensors[name] = file.get_tensor(key).to(torch.float32, copy=True)
                    check_finite(path, key, tensors[name])
    except (SafetensorError, OSError) as error:
        raise damaged(path, error) from None
    return tensors


def _current_name(name: str) -> str:
    """The name with gamma and beta of old files replaced by weight and bias."""
    for old, new in OLD_ENDINGS.items():
        name = name.removesuffix(old) + new if name.endswith(old) else name
    return name


def save_encoder(encoder: Encoder, folder: Path, pad_id: int = 0) -> None:
    """Writes config.json and model.safetensors for transformers, each atomically.

    `pad_id` is the tokenizer's; the encoder itself has no padding.
    """
    tensors = _their_tensors(encoder)
    with atomic_file(folder / WEIGHTS) as weights, atomic_file(folder / CONFIG) as config:
        save_file(tensors, weights, metadata={"format": "pt"})
        config.write_text(json.dumps(config_of(encoder.shape, pad_id), indent=2) + "\n", encoding="utf-8")


def fingerprints(encoder: Encoder) -> tuple[str, str]:
    """SHA-256 of the encoder without its pooler, and of the pooler, which is random if the encoder's files have none.

    They include the tensors' names, shapes and float32 bytes, sorted by name, and the settings that no tensor shows.
    Dropout is not included: a frozen encoder stays the same encoder whatever dropout it was trained with.
    """
    shape = encoder.shape
    encoder_digest = hashlib.sha256(f"{shape.heads} {shape.norm_eps} {shape.activation}\n".encode())
    if shape.kind != "bert":
        unseen = ("global_every", "window", "global_theta", "local_theta")
        values = [getattr(shape, name) for name in unseen if hasattr(shape, name)]
        encoder_digest.update(f"{shape.kind} {values}\n".encode())
    pooler_digest = hashlib.sha256()
    for name, tensor in sorted(encoder.state_dict().items()):
        digest = pooler_digest if name.startswith("pooler.") else encoder_digest
        digest.update(f"{name} {list(tensor.shape)}\n".encode())
        digest.update(tensor.float().cpu().contiguous().numpy().astype("<f4", copy=False).data)
    return encoder_digest.hexdigest(), pooler_digest.hexdigest()
