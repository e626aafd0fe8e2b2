"""The model folder: what predict, serve and export load, in files other programs can open too.

config.json and model.safetensors are the encoder as plain `transformers` reads it; tokenizer.json its tokenizer;
parts.safetensors the adapter and the heads; tasks.json, which is written last, what each task is and what the other
files were when they were written. Knows no training.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from polytask.build import check_vocabulary, complete, head_swap, make_model
from polytask.disk.atomic import atomic_file, write_atomically
from polytask.disk.hashing import sha256
from polytask.disk.json_files import read_json
from polytask.disk.records import convert
from polytask.model import MultiTaskModel
from polytask.pretrained.header import FLOATS, Entry, check_finite, read_header
from polytask.pretrained.weights import load_encoder, read_shape, save_encoder
from polytask.recipe.records import check_task_name
from polytask.text.packing import Packer
from polytask.text.tokenizer import TextTokenizer
from polytask.types import YES_NO, LabelKind, LabelSpace, MaxLength, MethodChoice, TaskSpec, UserError

FORMAT = 1
AGAIN = "train again, or take it from a copy"
SPARE = 2**20  # numbers that an adapter may take for a moment, beside its weights
FILES = ("config.json", "model.safetensors", "parts.safetensors", "tokenizer.json", "tasks.json")


# --- what tasks.json holds --------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Method:
    """A swap as tasks.json has it."""

    name: str
    options: Mapping[str, Any]

    def swap(self) -> MethodChoice:
        return MethodChoice(self.name, self.options)


@dataclass(frozen=True)
class TaskEntry:
    """A task as tasks.json has it."""

    kind: LabelKind
    text: tuple[str, ...]
    label: str | None
    classes: tuple[str, ...]
    range: tuple[float, float]
    metric: str | None
    head: Method
    encoding: str | None = None

    def check(self, where: str) -> None:
        """Refuses what no training writes."""
        if len(self.text) not in ((1,) if self.kind == "text" else (1, 2)):
            raise UserError(f"{where}.text: one column, or two for a pair, found {len(self.text)}")
        if (self.label is None) != (self.kind == "text"):
            raise UserError(f"{where}.label: every kind but text has one, found {self.label!r} for kind {self.kind}")
        fixed = YES_NO.classes if self.kind == "yes_no" else ()
        if self.kind == "classes":
            if len(self.classes) < 2 or len(set(self.classes)) < len(self.classes) or not all(self.classes):
                raise UserError(f"{where}.classes: two or more different names are needed, found {self.classes!r:.200}")
        elif self.classes != fixed:
            raise UserError(f"{where}.classes: kind {self.kind} has {list(fixed)}, found {self.classes!r:.200}")
        low, high = self.range
        if not low < high or not math.isfinite(high - low):
            raise UserError(f"{where}.range: the lowest score and a higher one are needed, found {[low, high]}")

    def labels(self, vocabulary: int = 0) -> LabelSpace:
        return LabelSpace(self.kind, self.classes, *self.range, vocabulary if self.kind == "text" else 0)

    def spec(self, name: str) -> TaskSpec:
        return TaskSpec(
            name,
            self.kind,
            self.text,
            self.label,
            train="",
            dev="",
            range=self.range,
            metric=self.metric,
            head=self.head.swap(),
            encoding=self.encoding,
        )


@dataclass(frozen=True)
class TasksFile:
    """All of tasks.json."""

    format: int
    max_length: MaxLength
    adapter: Method
    tasks: Mapping[str, TaskEntry]
    files: Mapping[str, str] = field(default_factory=dict)
    """SHA-256 of the other files."""


# --- the folder -------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Bundle:
    """A trained model with all it needs to answer."""

    model: MultiTaskModel
    tokenizer: TextTokenizer
    packer: Packer
    specs: Mapping[str, TaskSpec]
    labels: Mapping[str, LabelSpace]
    adapter: MethodChoice


def save_bundle(bundle: Bundle, folder: Path) -> None:
    encoder = bundle.model.encoder
    save_encoder(encoder, folder, bundle.tokenizer.pad_id)
    bundle.tokenizer.save(folder, encoder.shape.positions)
    parts = {
        name: t.cpu().contiguous() for name, t in bundle.model.state_dict().items() if not name.startswith("encoder.")
    }
    with atomic_file(folder / "parts.safetensors") as beside:
        save_file(parts, beside)
    content = {
        "format": FORMAT,
        "max_length": bundle.packer.max_length,
        "adapter": asdict(complete(bundle.adapter, "recipe: adapter")),
        "tasks": {name: _task_entry(spec, bundle.labels[name]) for name, spec in bundle.specs.items()},
        "files": {name: sha256(folder / name) for name in FILES if name != "tasks.json"},
    }
    write_atomically(folder / "tasks.json", json.dumps(content, indent=1, ensure_ascii=False))


def load_bundle(folder: Path) -> Bundle:
    """The model in a folder, which may come from a stranger: every file is checked before what it says is used."""
    for name in FILES:
        if not (folder / name).is_file():
            raise UserError(f"{folder / name} is missing: a trained model has {', '.join(FILES)}")
    content = read_tasks(folder / "tasks.json")
    for name, hashed in content.files.items():  # folders of the first versions have none
        if name in FILES and sha256(folder / name) != hashed:
            raise UserError(f"{folder / name}: damaged: it is not what was written; {AGAIN}")
    shape = read_shape(folder)
    if content.max_length > shape.positions:
        raise UserError(
            f"{folder / 'tasks.json'}: max_length: must be in [4, {shape.positions}], the encoder's positions, found "
            f"{content.max_length}"
        )
    tokenizer = TextTokenizer.load(folder, content.max_length)
    check_vocabulary(tokenizer, shape, folder)
    specs = {name: entry.spec(name) for name, entry in content.tasks.items()}
    labels = {name: entry.labels(tokenizer.vocabulary) for name, entry in content.tasks.items()}
    adapter = complete(content.adapter.swap(), f"{folder / 'tasks.json'}: adapter", saved=True)
    model = _load_model(folder, specs, labels, adapter)
    packer = Packer(tuple(specs), tokenizer.cls_id, tokenizer.sep_id, content.max_length, tokenizer.masker)
    return Bundle(model.eval(), tokenizer, packer, specs, labels, adapter)


def _load_model(
    folder: Path, specs: Mapping[str, TaskSpec], labels: Mapping[str, LabelSpace], adapter: MethodChoice
) -> MultiTaskModel:
    path = folder / "parts.safetensors"
    header = read_header(path, AGAIN)
    # The adapter and the heads that tasks.json describes are made only as far as the file has numbers for them.
    held = sum(math.prod(entry.shape) for entry in header.values())
    try:
        model = make_model(specs, labels, adapter, lambda: load_encoder(folder), most=2 * held + SPARE)
    except UserError as error:
        raise UserError(str(error).replace("recipe:", f"{folder / 'tasks.json'}:", 1)) from None
    _check_parts(path, header, model)
    parts = load_file(path)
    for name, tensor in parts.items():
        check_finite(path, name, tensor)
    model.load_state_dict(parts, strict=False)
    return model


def _check_parts(path: Path, header: Mapping[str, Entry], model: MultiTaskModel) -> None:
    """Refuses names and shapes other than the model's; above all the encoder's, which would replace checked weights."""
    own = {name: tensor for name, tensor in model.state_dict().items() if not name.startswith("encoder.")}
    wrong = sorted(own.keys() ^ header.keys())
    if wrong:
        more = f" and {len(wrong) - 5} more" if len(wrong) > 5 else ""
        raise UserError(f"{path}: does not fit tasks.json: {', '.join(wrong[:5])}{more}")
    for name, tensor in own.items():
        found = header[name]
        if found.shape != tuple(tensor.shape):
            raise UserError(
                f"{path}: tensor {name} has shape {list(found.shape)}, and tasks.json makes it {list(tensor.shape)}"
            )
        if found.dtype not in FLOATS:
            raise UserError(f"{path}: tensor {name} is {found.dtype}, and must be one of {', '.join(sorted(FLOATS))}")


def read_tasks(path: Path) -> TasksFile:
    """The record in tasks.json, checked."""
    try:
        content = read_json(path)
    except UserError as error:
        raise UserError(f"{path}: damaged: {error}; {AGAIN}") from None
    if not {"format", "max_length", "adapter", "tasks"} <= content.keys():
        raise UserError(f"{path}: damaged: this is no description of a model's tasks")
    if content["format"] != FORMAT:
        raise UserError(f"{path}: format {content['format']!r} is not known to this version, which reads {FORMAT}")
    found: TasksFile = convert(content, TasksFile, str(path))
    if not found.tasks:
        raise UserError(f"{path}: tasks: at least one task is needed")
    for name, entry in found.tasks.items():
        check_task_name(name, f"{path}: tasks")
        entry.check(f"{path}: tasks.{name}")
    return found


def no_model(run: Path) -> UserError:
    """What to say of a run without a model folder."""
    summary = run / "summary.json"
    refused = read_json(summary).get("refused") if summary.is_file() else None
    if refused:
        return UserError(f"{run}: no trained model here: it was not saved, because {refused}")
    return UserError(f"{run}: no trained model here: the run has not finished (go on with it by --resume)")


def _task_entry(spec: TaskSpec, labels: LabelSpace) -> dict[str, Any]:
    return {
        "kind": spec.kind,
        "text": spec.text,
        "label": spec.label,
        "classes": labels.classes,
        "range": [labels.low, labels.high],
        "metric": spec.metric,
        "head": asdict(head_swap(spec)),
        "encoding": spec.encoding,
    }
