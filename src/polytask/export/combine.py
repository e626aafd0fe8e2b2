"""Several tasks' adapter files put together on the encoder they were made for: one model folder. Knows no training."""

import json
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path

import torch

from polytask.build import check_vocabulary, complete, make_model
from polytask.disk.atomic import atomic_folder
from polytask.encoders.bert import Bert
from polytask.export.adapter import (
    AdapterFile,
    check_new,
    model_folder,
    read_adapter,
    task_tensors,
    tokenizer_fingerprint,
)
from polytask.model import MultiTaskModel
from polytask.pretrained.find import find_encoder
from polytask.pretrained.weights import fingerprints, load_encoder
from polytask.recipe.records import check_task_name
from polytask.runs.bundle import SPARE, Bundle, no_model, save_bundle
from polytask.text.packing import Packer
from polytask.text.tokenizer import TextTokenizer
from polytask.types import MethodChoice, UserError


def combine(
    encoder: str | Path,
    files: Iterable[str | Path | tuple[str, str | Path]],
    output: str | Path,
    max_length: int | None = None,
) -> Path:
    """Puts adapter files together on their encoder into one model folder, which `load` and `polytask predict` read.

    `encoder` is a run, a model folder, or an encoder as recipes name it. A (name, file) pair renames the task.
    `max_length` is needed only where the files differ in it.
    """
    target = check_new(Path(output))
    parts = _named(files)
    adapter = _same_adapter(parts)
    folder = _encoder_folder(encoder)
    tokenizer = TextTokenizer.load(folder)
    specs = {name: part.about.task.spec(name) for name, part in parts.items()}
    labels = {name: part.about.task.labels() for name, part in parts.items()}
    # No record can ask for more memory than its file has numbers for.
    held = sum(tensor.numel() for part in parts.values() for tensor in part.tensors.values())
    try:
        encoder_of = partial(_fitting_encoder, folder, tokenizer, parts.values())
        model = make_model(specs, labels, adapter, encoder_of, most=2 * held + SPARE)
    except UserError as error:
        raise UserError(str(error).replace("recipe:", "the adapter files:", 1)) from None
    for name, part in parts.items():
        _fill(model, name, part)
    length = _length(parts, max_length, model.encoder.shape.positions)
    packer = Packer(tuple(parts), tokenizer.cls_id, tokenizer.sep_id, length)
    with atomic_folder(target) as fresh:
        save_bundle(Bundle(model, tokenizer, packer, specs, labels, adapter), fresh)
    return target


def _named(files: Iterable[str | Path | tuple[str, str | Path]]) -> dict[str, AdapterFile]:
    parts: dict[str, AdapterFile] = {}
    for given in files:
        name, path = given if isinstance(given, tuple) else (None, given)
        part = read_adapter(Path(path))
        name = part.about.name if name is None else name
        check_task_name(name, str(path))
        if name in parts:
            raise UserError(
                f"{path}: {parts[name].path} has a task {name} too; give one of them another name, as NAME=FILE"
            )
        parts[name] = part
    if not parts:
        raise UserError("combine: at least one adapter file is needed")
    return parts


def _same_adapter(parts: Mapping[str, AdapterFile]) -> MethodChoice:
    first, *rest = parts.values()
    adapter = complete(first.about.adapter.swap(), f"{first.path}: adapter", saved=True)
    for part in rest:
        other = complete(part.about.adapter.swap(), f"{part.path}: adapter", saved=True)
        if other != adapter:
            raise UserError(
                f"{part.path}: its adapter is {_shown(other)}, and that of {first.path} is {_shown(adapter)}: "
                "one model has one adapter for all its tasks"
            )
    return adapter


def _shown(swap: MethodChoice) -> str:
    return f"{swap.name} {json.dumps(swap.options)}"


def _length(parts: Mapping[str, AdapterFile], wanted: int | None, positions: int) -> int:
    found = {name: part.about.max_length for name, part in parts.items()}
    if wanted is None and len(set(found.values())) > 1:
        said = ", ".join(f"{name} {length}" for name, length in found.items())
        raise UserError(
            f"the files differ in max_length ({said}), and a model has one: choose it with --max-length; only texts "
            "that one of them cuts and the other does not are answered differently than before"
        )
    length = next(iter(found.values())) if wanted is None else wanted
    if not 4 <= length <= positions:
        raise UserError(
            f"max_length: a number from 4 to {positions}, the encoder's positions, is needed, found {length}"
        )
    return length


def _encoder_folder(encoder: str | Path) -> Path:
    """Where the encoder's files are. `minilm` is the encoder, as in recipes: a folder of that name is `./minilm`."""
    found = None if encoder == "minilm" else model_folder(Path(encoder))
    if found is None and (Path(encoder) / "recipe.yaml").is_file():
        raise no_model(Path(encoder))
    return found or find_encoder(str(encoder))


def _fitting_encoder(folder: Path, tokenizer: TextTokenizer, parts: Iterable[AdapterFile]) -> Bert:
    """The folder's encoder, when every file was made for it."""
    bert = load_encoder(folder)
    check_vocabulary(tokenizer, bert.shape, folder)
    fingerprint, pooler = fingerprints(bert)
    tokens = tokenizer_fingerprint(tokenizer)
    for part in parts:
        about = part.about
        made_on = f"(run {about.run}, encoder {about.encoder})"
        if about.encoder_fingerprint != fingerprint:
            raise UserError(
                f"{part.path} was made for another encoder: {about.encoder_fingerprint[:12]} {made_on}, and "
                f"{folder} is {fingerprint[:12]}. "
                "An adapter fits only the encoder it was trained on: give that run as the encoder, or train with "
                "`train.parts: adapters`, which leaves the encoder as it is, so that adapters of many runs fit it"
            )
        if about.pooler not in (None, pooler):
            raise UserError(
                f"{part.path}: its head uses the pooler {about.pooler[:12]} {made_on}, and that of {folder} is "
                f"{pooler[:12]}. An encoder without a pooler gets one from each run's seed: pass that run as "
                "the encoder"
            )
        if about.tokenizer != tokens:
            raise UserError(
                f"{part.path}: the tokenizer of {folder} reads texts otherwise than the one it was made with {made_on}"
            )
    return bert


def _fill(model: MultiTaskModel, name: str, part: AdapterFile) -> None:
    own = task_tensors(model, name)
    for key in sorted(own.keys() | part.tensors.keys()):
        needed, found = (list(side[key].shape) if key in side else "none" for side in (own, part.tensors))
        if needed != found:
            raise UserError(f"{part.path}: tensor {key}: its own record makes the shape {needed}, found {found}")
    with torch.no_grad():
        for key, tensor in own.items():
            tensor.copy_(part.tensors[key])
