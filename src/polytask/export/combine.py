"""Combines adapter files of several tasks, and the encoder they were trained on, into one model folder."""

import json
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path

import torch

from polytask.build import check_vocabulary, complete, make_model
from polytask.disk.atomic import atomic_folder
from polytask.encoders.base import Encoder
from polytask.export.adapter import (
    AdapterFile,
    check_new,
    read_adapter,
    tokenizer_fingerprint,
)
from polytask.methods import KIND, find_method
from polytask.model import MultiTaskModel
from polytask.plugins.files import Plugin, read_copies, read_plugins, using_plugins
from polytask.pretrained.find import find_encoder
from polytask.pretrained.weights import fingerprints, load_encoder
from polytask.recipe.records import check_task_name
from polytask.runs.bundle import SPARE, Bundle, no_model, save_bundle, task_tensors
from polytask.runs.folder import RunFolder, find_model
from polytask.runs.tasks_file import read_tasks
from polytask.settings import MethodChoice, Truncate
from polytask.text.packing import Packer
from polytask.text.tokenizer import TextTokenizer
from polytask.types import UserError


def combine(
    encoder: str | Path,
    files: Iterable[str | Path | tuple[str, str | Path]],
    output: str | Path,
    max_length: int | None = None,
    plugins: Iterable[str | Path] = (),
    trust_plugins: bool = False,
) -> Path:
    """Combines adapter files into one model folder, which `load` and `polytask predict` can read.

    Args:
        encoder: A run, a model folder, or an encoder as in a recipe.
        files: The adapter files. A (name, file) pair renames the task.
        output: The folder to write. It must not exist.
        max_length: The model's maximum sequence length. Required if the files differ.
        plugins: The plug-in files that register the methods of the files, in addition to those of `encoder`, if that is
            a run or a model folder. The new model has copies of them.
        trust_plugins: Remember that the plug-ins, which are Python programs, may run.
    """
    loaded = _read_plugins(encoder, plugins, trust_plugins)
    with using_plugins(loaded):
        return _combine(encoder, files, check_new(Path(output)), max_length, loaded)


def _read_plugins(encoder: str | Path, files: Iterable[str | Path], trust: bool) -> tuple[Plugin, ...]:
    """The plug-ins of the encoder's model folder and these files; of two with one name, the file is used."""
    model = None if encoder == "minilm" else find_model(Path(encoder))
    own = () if model is None else read_copies(model.path, read_tasks(model.tasks).plugins, trust)
    given = read_plugins(files, trust)
    return (*(plugin for plugin in own if plugin.name not in {one.name for one in given}), *given)


def _combine(
    encoder: str | Path,
    files: Iterable[str | Path | tuple[str, str | Path]],
    target: Path,
    max_length: int | None,
    plugins: tuple[Plugin, ...],
) -> Path:
    parts = _read_files(files)
    for part in parts.values():
        find_method(KIND, part.about.task.kind, f"{part.path}: task.kind")
    adapter = _common_adapter(parts)
    folder = _encoder_folder(encoder)
    truncate = _common_truncate(parts)
    tokenizer = TextTokenizer.load(folder, truncate=truncate)
    specs = {name: part.about.task.spec(name) for name, part in parts.items()}
    labels = {name: part.about.task.labels() for name, part in parts.items()}
    # Metadata cannot cause more memory to be allocated than its file has weights for.
    size = sum(tensor.numel() for part in parts.values() for tensor in part.tensors.values())
    try:
        load_checked = partial(_load_checked_encoder, folder, tokenizer, parts.values())
        model = make_model(specs, labels, adapter, load_checked, most=2 * size + SPARE)
    except UserError as error:
        raise UserError(str(error).replace("recipe:", "the adapter files:", 1)) from None
    for name, part in parts.items():
        _copy_tensors(model, name, part)
    length = _choose_length(parts, max_length, model.encoder.shape.positions)
    ids = tokenizer.cls_id, tokenizer.sep_id
    packer = Packer(tuple(parts), *ids, length, pair=tokenizer.pair, truncate=truncate)
    with atomic_folder(target) as fresh:
        temperatures = {name: part.about.task.temperature for name, part in parts.items()}
        methods = adapter, None, plugins, temperatures
        save_bundle(Bundle(model, tokenizer, packer, specs, labels, *methods), fresh)
    return target


def _read_files(files: Iterable[str | Path | tuple[str, str | Path]]) -> dict[str, AdapterFile]:
    """The adapter files by task name."""
    parts: dict[str, AdapterFile] = {}
    for given in files:
        name, path = given if isinstance(given, tuple) else (None, given)
        part = read_adapter(Path(path))
        name = part.about.name if name is None else name
        check_task_name(name, str(path))
        if name in parts:
            raise UserError(f"{path}: {parts[name].path} also has a task {name}; rename one of them with NAME=FILE")
        parts[name] = part
    if not parts:
        raise UserError("combine: pass at least one adapter file")
    return parts


def _common_adapter(parts: Mapping[str, AdapterFile]) -> MethodChoice:
    first, *rest = parts.values()
    adapter = complete(first.about.adapter.choice(), f"{first.path}: adapter", saved=True)
    for part in rest:
        other = complete(part.about.adapter.choice(), f"{part.path}: adapter", saved=True)
        if other != adapter:
            raise UserError(
                f"{part.path}: the adapter must be the same in all files; it is {_shown(other)} here, and "
                f"{_shown(adapter)} in {first.path}"
            )
    return adapter


def _shown(choice: MethodChoice) -> str:
    return f"{choice.name} {json.dumps(choice.options)}"


def _common_truncate(parts: Mapping[str, AdapterFile]) -> Truncate:
    first, *rest = parts.values()
    for part in rest:
        if part.about.truncate != first.about.truncate:
            raise UserError(
                f"{part.path}: truncate must be the same in all files; it is {part.about.truncate} here, and "
                f"{first.about.truncate} in {first.path}"
            )
    return first.about.truncate


def _choose_length(parts: Mapping[str, AdapterFile], asked: int | None, positions: int) -> int:
    lengths = {name: part.about.max_length for name, part in parts.items()}
    if asked is None and len(set(lengths.values())) > 1:
        listed = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise UserError(
            f"the files differ in max_length ({listed}), but a model has only one; pass --max-length to choose it. "
            "Predictions change only for texts that are truncated at one length and not at the other"
        )
    length = next(iter(lengths.values())) if asked is None else asked
    if not 4 <= length <= positions:
        raise UserError(f"max_length: must be in [4, {positions}], the encoder's positions; found {length}")
    return length


def _encoder_folder(encoder: str | Path) -> Path:
    """The folder with the encoder's files. `minilm` is the encoder, as in recipes; a folder can be `./minilm`."""
    model = None if encoder == "minilm" else find_model(Path(encoder))
    if model is None and RunFolder(Path(encoder)).recipe.is_file():
        raise no_model(Path(encoder))
    return find_encoder(str(encoder)) if model is None else model.path


def _load_checked_encoder(folder: Path, tokenizer: TextTokenizer, parts: Iterable[AdapterFile]) -> Encoder:
    """Loads the folder's encoder; raises a UserError if a file was trained on another encoder."""
    bert = load_encoder(folder)
    check_vocabulary(tokenizer, bert.shape, folder)
    fingerprint, pooler = fingerprints(bert)
    tokens = tokenizer_fingerprint(tokenizer)
    for part in parts:
        about = part.about
        origin = f"(run {about.run}, encoder {about.encoder})"
        if about.encoder_fingerprint != fingerprint:
            raise UserError(
                f"{part.path} was trained on another encoder: {about.encoder_fingerprint[:12]} {origin}, but {folder} "
                f"is {fingerprint[:12]}. An adapter fits only the encoder it was trained on: pass that run as the "
                "encoder, or train with `train.parts: adapters`, which does not change the encoder, so that adapters "
                "of several runs fit it"
            )
        if about.pooler not in (None, pooler):
            raise UserError(
                f"{part.path}: its head uses the pooler {about.pooler[:12]} {origin}, but {folder} has the pooler "
                f"{pooler[:12]}. If an encoder has no pooler, each run initializes one by its seed: pass that run as "
                "the encoder"
            )
        if about.tokenizer != tokens:
            raise UserError(
                f"{part.path}: the tokenizer of {folder} is not the one that the adapter was trained with {origin}"
            )
    return bert


def _copy_tensors(model: MultiTaskModel, name: str, part: AdapterFile) -> None:
    own = task_tensors(model, name)
    for key in sorted(own.keys() | part.tensors.keys()):
        expected, actual = (list(side[key].shape) if key in side else "none" for side in (own, part.tensors))
        if expected != actual:
            raise UserError(f"{part.path}: tensor {key}: must have the shape {expected}, found {actual}")
    with torch.no_grad():
        for key, tensor in own.items():
            tensor.copy_(part.tensors[key])
