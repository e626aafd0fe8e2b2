"""One task of a run as a small file of its own: written from a run, and read with every doubt a stranger's file needs.

The file is safetensors: the task's `adapter.*` and `head.*`, named without its place among the run's tasks, and in the
metadata a record of what they are (`About`). Of the encoder it has a fingerprint only. What files become: combine.py.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from polytask.build import complete
from polytask.disk.atomic import atomic_file
from polytask.disk.json_files import parse_json, read_json
from polytask.disk.records import convert
from polytask.disk.writable import writing
from polytask.heads.base import Head
from polytask.model import MultiTaskModel
from polytask.pretrained.header import FLOATS, check_finite, read_header
from polytask.pretrained.weights import fingerprints
from polytask.runs.bundle import Bundle, Method, TaskEntry, load_bundle, no_model, read_tasks
from polytask.text.tokenizer import TextTokenizer
from polytask.types import MaxLength, UserError, unknown

FORMAT = 1
KEY = "polytask_adapter"  # one key for all: safetensors writes several in an order that changes from time to time
PROBE = "The Café's NAÏVE straße_42, don't [SEP] 北京 unbelievably 3.14 🙂"


@dataclass(frozen=True)
class About:
    """What an adapter file says of itself."""

    format: int
    name: str
    task: TaskEntry
    adapter: Method
    """Every option written out: another version may have other defaults."""
    max_length: MaxLength
    encoder_fingerprint: str
    """Of the encoder without its pooler."""
    pooler: str | None
    """Fingerprint of the pooler, where the task's head uses it."""
    tokenizer: str
    run: str
    encoder: str


@dataclass(frozen=True)
class AdapterFile:
    path: Path
    about: About
    tensors: Mapping[str, Tensor]


# --- from a run to a file ---------------------------------------------------------------------------------------------
def export_adapter(run: str | Path, task: str, output: str | Path | None = None) -> Path:
    """Writes one task's adapter and head to a file (left out: TASK.adapter.safetensors in the current folder)."""
    folder = model_folder(Path(run))
    if folder is None:
        raise no_model(Path(run)) if Path(run).is_dir() else UserError(f"{run}: no trained model here: no such folder")
    bundle = load_bundle(folder)
    if task not in bundle.specs:
        raise UserError(unknown(str(run), task, bundle.specs, "task"))
    if bundle.specs[task].kind == "text":
        raise UserError(f"{run}: task {task} is plain text: it predicts nothing, so there is nothing to export")
    target = check_new(Path(f"{task}.adapter.safetensors") if output is None else Path(output))
    if bundle.model.budget()["adapter_shared"]:
        raise UserError(f"{run}: tasks share parts of the adapter {bundle.adapter.name}: one cannot be taken out of it")
    about = json.dumps(asdict(_about(bundle, folder, task)), ensure_ascii=False)
    tensors = {name: tensor.detach().contiguous() for name, tensor in task_tensors(bundle.model, task).items()}
    with atomic_file(target) as beside:
        save_file(tensors, beside, metadata={KEY: about})
    return target


def model_folder(run: Path) -> Path | None:
    """The model folder of a run, or the folder itself where it is one."""
    return next((folder for folder in (run / "model", run) if (folder / "tasks.json").is_file()), None)


def task_tensors(model: MultiTaskModel, task: str) -> dict[str, Tensor]:
    """All that the model has for this task alone, by its names in a file; the tensors are the model's own."""
    adapter = {f"adapter.{name}": tensor.data for name, tensor in model.adapter.task_state(task).items()}
    return adapter | {f"head.{name}": tensor for name, tensor in model.head(task).state_dict().items()}


def _about(bundle: Bundle, folder: Path, task: str) -> About:
    fingerprint, pooler = fingerprints(bundle.model.encoder)
    content = read_tasks(folder / "tasks.json")
    run, encoder = _origin(folder)
    return About(
        FORMAT,
        task,
        content.tasks[task],
        Method(**vars(complete(bundle.adapter, f"{folder / 'tasks.json'}: adapter"))),
        bundle.packer.max_length,
        fingerprint,
        pooler if _uses_pooler(bundle.model.head(task)) else None,
        tokenizer_fingerprint(bundle.tokenizer),
        run,
        encoder,
    )


def _origin(folder: Path) -> tuple[str, str]:
    """Names of the run and its encoder, for people to read. A folder's name stands for its path, which is private."""
    folder = folder.resolve()
    summary = folder.parent / "summary.json"
    if folder.name != "model" or not summary.is_file():
        return folder.name, "unknown"
    content = read_json(summary)
    name, encoder = (str(content.get(key, "unknown")) for key in ("name", "encoder"))
    return name, Path(encoder).name if Path(encoder).is_absolute() else encoder


def _uses_pooler(head: Head) -> bool:
    return getattr(head, "pooling", "pooler") == "pooler"  # a head that does not say is taken to use it


# --- from a file ------------------------------------------------------------------------------------------------------
def read_adapter(path: Path) -> AdapterFile:
    if not path.is_file():
        raise UserError(f"{path}: there is no such file")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
        content = parse_json(metadata.get(KEY, "{}"), "its record")
    except (SafetensorError, OSError, UserError) as error:
        raise UserError(f"{path}: not a whole adapter file ({error}); export it, or fetch it, again") from None
    if not isinstance(content, dict) or "format" not in content:
        raise UserError(f"{path}: not an adapter file: `polytask export RUN --adapter TASK` makes them")
    if content["format"] != FORMAT:
        raise UserError(f"{path}: format {content['format']!r} is not known to this version, which reads {FORMAT}")
    if "trunk" in content:  # the name of this field in files of earlier versions
        content["encoder_fingerprint"] = content.pop("trunk")
    about: About = convert(content, About, str(path))
    about.task.check(f"{path}: task")
    if about.task.kind == "text":
        raise UserError(f"{path}: task.kind: a task of plain text predicts nothing, and cannot be combined")
    return AdapterFile(path, about, _tensors(path))


def _tensors(path: Path) -> dict[str, Tensor]:
    for name, entry in read_header(path, "export it, or fetch it, again").items():
        if entry.dtype not in FLOATS:
            raise UserError(f"{path}: tensor {name} is {entry.dtype}, and must be one of {', '.join(sorted(FLOATS))}")
    tensors = load_file(path)
    for name, tensor in tensors.items():
        check_finite(path, name, tensor)
    return tensors


# --- what export and combine share ------------------------------------------------------------------------------------
def tokenizer_fingerprint(tokenizer: TextTokenizer) -> str:
    """Of what it makes of a text, rather than of its file, which has several forms that do the same."""
    ids = [tokenizer.cls_id, tokenizer.sep_id, *tokenizer.encode([PROBE])[0].tolist()]
    return hashlib.sha256(json.dumps(ids).encode()).hexdigest()


def check_new(target: Path) -> Path:
    """The target, when nothing is there yet."""
    with writing(target):
        taken = target.is_symlink() or target.exists()
    if taken:
        raise UserError(f"{target}: already exists; choose another name, or delete it first")
    return target
