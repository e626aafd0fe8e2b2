"""The model folder: what predict, serve and export load, in files other programs can open too.

config.json and model.safetensors are the trunk as plain `transformers` reads it; tokenizer.json its tokenizer;
parts.safetensors the adapter and the heads; tasks.json, which is written last, what each task is and what the other
files were when they were written. Knows no training.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from polytask.build import head_swap, make_model
from polytask.model import MultiTaskModel
from polytask.text.packing import Packer
from polytask.text.tokenizer import TextTokenizer
from polytask.trunk.encoders import sha256
from polytask.trunk.weights import load_trunk, save_trunk
from polytask.types import LabelSpace, Swap, TaskSpec, UserError
from polytask.values import convert
from polytask.whole import whole_file, write_whole

FORMAT = 1
AGAIN = "train again, or take it from a copy"
FILES = ("config.json", "model.safetensors", "parts.safetensors", "tokenizer.json", "tasks.json")


@dataclass(frozen=True)
class Bundle:
    """A trained model with all it needs to answer."""

    model: MultiTaskModel
    tokenizer: TextTokenizer
    packer: Packer
    specs: Mapping[str, TaskSpec]
    labels: Mapping[str, LabelSpace]
    adapter: Swap


def save_bundle(bundle: Bundle, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    save_trunk(bundle.model.trunk, folder)
    bundle.tokenizer.save(folder)
    parts = {
        name: t.cpu().contiguous() for name, t in bundle.model.state_dict().items() if not name.startswith("trunk.")
    }
    with whole_file(folder / "parts.safetensors") as beside:
        save_file(parts, beside)
    content = {
        "format": FORMAT,
        "max_length": bundle.packer.max_length,
        "adapter": asdict(bundle.adapter),
        "tasks": {name: _task_entry(spec, bundle.labels[name]) for name, spec in bundle.specs.items()},
        "files": {name: sha256(folder / name) for name in FILES if name != "tasks.json"},
    }
    write_whole(folder / "tasks.json", json.dumps(content, indent=1, ensure_ascii=False))


def load_bundle(folder: Path) -> Bundle:
    for name in FILES:
        if not (folder / name).is_file():
            raise UserError(f"{folder / name} is missing: a trained model has {', '.join(FILES)}")
    content = _read_tasks(folder / "tasks.json")
    for name, hashed in content.get("files", {}).items():  # folders of the first versions have none
        if name in FILES and sha256(folder / name) != hashed:
            raise UserError(f"{folder / name}: damaged: it is not what was written; {AGAIN}")
    specs, labels = {}, {}
    tokenizer = TextTokenizer.load(folder)
    for name, entry in content["tasks"].items():
        specs[name], labels[name] = _task_from(name, entry, tokenizer.vocabulary)
    adapter: Swap = Swap(**content["adapter"])
    model = make_model(specs, labels, adapter, lambda: load_trunk(folder))
    parts = load_file(folder / "parts.safetensors")
    missing = model.load_state_dict(parts, strict=False)
    absent = [name for name in missing.missing_keys if not name.startswith("trunk.")]
    if absent or missing.unexpected_keys:
        raise UserError(f"{folder / 'parts.safetensors'}: does not fit tasks.json: {absent + missing.unexpected_keys}")
    packer = Packer(tuple(specs), tokenizer.cls_id, tokenizer.sep_id, content["max_length"], tokenizer.masker)
    return Bundle(model.eval(), tokenizer, packer, specs, labels, adapter)


def _read_tasks(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path}: damaged: {error}; {AGAIN}") from None
    if not isinstance(content, dict) or not {"format", "max_length", "adapter", "tasks"} <= content.keys():
        raise UserError(f"{path}: damaged: this is no description of a model's tasks")
    if content["format"] != FORMAT:
        raise UserError(f"{path}: format {content['format']} is not known to this version, which reads {FORMAT}")
    return content


def no_model(run: Path) -> UserError:
    """What to say of a run without a model folder."""
    summary = run / "summary.json"
    refused = json.loads(summary.read_text(encoding="utf-8")).get("refused") if summary.is_file() else None
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
        **({"encoding": spec.encoding} if spec.encoding is not None else {}),
    }


def _task_from(name: str, entry: Mapping[str, Any], vocabulary: int) -> tuple[TaskSpec, LabelSpace]:
    own = vocabulary if entry["kind"] == "text" else 0
    low, high = entry["range"]
    labels = LabelSpace(entry["kind"], tuple(entry["classes"]), low, high, own)
    head = Swap(entry["head"]["name"], entry["head"]["options"])
    given = {
        "name": name,
        "train": "",
        "dev": "",
        "kind": entry["kind"],
        "text": entry["text"],
        "label": entry["label"],
        "encoding": entry.get("encoding"),
    }
    spec: TaskSpec = convert({**given, "metric": entry["metric"]}, TaskSpec, f"tasks.json: {name}")
    return TaskSpec(**{**vars(spec), "head": head, "range": (labels.low, labels.high)}), labels
