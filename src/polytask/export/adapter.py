"""Adapter files: one task of a run as a small file. Files are read as untrusted input.

The format is safetensors. The tensors are the task's `adapter.*` and `head.*`, with names that do not depend on the
run's other tasks. The metadata describes them (`About`). Of the encoder, the file has only a fingerprint. combine.py
makes models of such files.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from polytask.disk.atomic import atomic_file
from polytask.disk.json_files import parse_json, read_json
from polytask.disk.records import convert
from polytask.disk.writable import writing
from polytask.kinds.table import KINDS
from polytask.pretrained.header import FLOATS, check_finite, read_header
from polytask.pretrained.weights import fingerprints
from polytask.runs.bundle import Bundle, load_bundle, no_model, task_tensors
from polytask.runs.folder import ModelFolder, RunFolder, find_model
from polytask.runs.tasks_file import Method, TaskEntry
from polytask.settings import MaxLength, Truncate
from polytask.text.tokenizer import TextTokenizer
from polytask.types import UserError, unknown

FORMAT = 1
KEY = "polytask_adapter"  # a single key, because safetensors writes several keys in a random order
AGAIN = "export or download it again"
PROBE = "The Café's NAÏVE straße_42, don't [SEP] 北京 unbelievably 3.14 🙂"


@dataclass(frozen=True)
class About:
    """The metadata of an adapter file."""

    format: int
    name: str
    task: TaskEntry
    adapter: Method
    """With all options: another version may have other defaults."""
    max_length: MaxLength
    encoder_fingerprint: str
    """Fingerprint of the encoder without its pooler."""
    pooler: str | None
    """Fingerprint of the pooler, if the task's head uses it."""
    tokenizer: str
    run: str
    encoder: str
    truncate: Truncate = "end"


@dataclass(frozen=True)
class AdapterFile:
    """The content of an adapter file."""

    path: Path
    about: About
    tensors: Mapping[str, Tensor]


# --- writing ----------------------------------------------------------------------------------------------------------
def export_adapter(run: str | Path, task: str, output: str | Path | None = None, trust_plugins: bool = False) -> Path:
    """Writes one task's adapter and head to a file (default: TASK.adapter.safetensors in the current folder).

    `trust_plugins` remembers that the run's plug-ins, which are Python programs, may run.
    """
    model = find_model(Path(run))
    if model is None:
        raise no_model(Path(run)) if Path(run).is_dir() else UserError(f"{run}: there is no such run")
    bundle = load_bundle(model.path, trust_plugins)
    if task not in bundle.specs:
        raise UserError(unknown(str(run), task, bundle.specs, "task"))
    if not bundle.model.head(task).kind.has_predictions:
        raise UserError(f"{run}: task {task} is of kind text: it has no labels to predict, so it cannot be exported")
    target = check_new(Path(f"{task}.adapter.safetensors") if output is None else Path(output))
    if bundle.model.budget()["adapter_shared"]:
        raise UserError(
            f"{run}: the tasks share parameters of the adapter {bundle.adapter.name}, so one task cannot be exported"
        )
    if bundle.word_tags is not None:
        raise UserError(f"{run}: the tasks share the embedding of word tags, so one task cannot be exported")
    about = json.dumps(asdict(_about(bundle, model, task)), ensure_ascii=False)
    tensors = {name: tensor.detach().contiguous() for name, tensor in task_tensors(bundle.model, task).items()}
    with atomic_file(target) as file:
        save_file(tensors, file, metadata={KEY: about})
    return target


def _about(bundle: Bundle, model: ModelFolder, task: str) -> About:
    fingerprint, pooler = fingerprints(bundle.model.encoder)
    run, encoder = _origin(model.path.resolve())
    return About(
        FORMAT,
        task,
        TaskEntry.of(bundle.specs[task], bundle.labels[task], bundle.temperatures.get(task, 1.0)),
        Method.of(bundle.adapter),
        bundle.packer.max_length,
        fingerprint,
        pooler if bundle.model.head(task).pooling == "pooler" else None,
        tokenizer_fingerprint(bundle.tokenizer),
        run,
        encoder,
        bundle.packer.truncate,
    )


def _origin(folder: Path) -> tuple[str, str]:
    """Names of the run and its encoder, for information. Of a path only the last part is used: paths are private."""
    run = RunFolder(folder.parent)
    if folder != run.model.path or not run.summary.is_file():
        return folder.name, "unknown"
    content = read_json(run.summary)
    name, encoder = (str(content.get(key, "unknown")) for key in ("name", "encoder"))
    return name, Path(encoder).name if Path(encoder).is_absolute() else encoder


# --- reading ----------------------------------------------------------------------------------------------------------
def read_adapter(path: Path) -> AdapterFile:
    """Reads an adapter file, which may come from anybody: everything in it is checked."""
    if not path.is_file():
        raise UserError(f"{path}: there is no such file")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
        content = parse_json(metadata.get(KEY, "{}"), "its metadata")
    except (SafetensorError, OSError, UserError) as error:
        raise UserError(f"{path}: the adapter file is damaged ({error}); {AGAIN}") from None
    if not isinstance(content, dict) or "format" not in content:
        raise UserError(f"{path}: this is not an adapter file; `polytask export RUN --adapter TASK` writes them")
    if content["format"] != FORMAT:
        raise UserError(f"{path}: format: must be {FORMAT} for this version of polytask, found {content['format']!r}")
    if "trunk" in content:  # the field's name in files of earlier versions
        content["encoder_fingerprint"] = content.pop("trunk")
    about: About = convert(content, About, str(path))
    about.task.check(f"{path}: task")
    if not KINDS[about.task.form or about.task.kind].has_predictions:
        raise UserError(f"{path}: task.kind: a task of kind text has no labels to predict, so it cannot be combined")
    return AdapterFile(path, about, _read_tensors(path))


def _read_tensors(path: Path) -> dict[str, Tensor]:
    for name, entry in read_header(path, AGAIN).items():
        if entry.dtype not in FLOATS:
            raise UserError(f"{path}: tensor {name} must be one of {', '.join(sorted(FLOATS))}, found {entry.dtype}")
    tensors = load_file(path)
    for name, tensor in tensors.items():
        check_finite(path, name, tensor)
    return tensors


# --- used by export and combine ---------------------------------------------------------------------------------------
def tokenizer_fingerprint(tokenizer: TextTokenizer) -> str:
    """A fingerprint of the ids of a test text, rather than of the file: different files can do the same."""
    ids = [tokenizer.cls_id, tokenizer.sep_id, *tokenizer.encode([PROBE])[0].tolist()]
    return hashlib.sha256(json.dumps(ids).encode()).hexdigest()


def check_new(target: Path) -> Path:
    """Returns the target; raises a UserError if it exists."""
    with writing(target):
        exists = target.is_symlink() or target.exists()
    if exists:
        raise UserError(f"{target}: already exists; choose another name, or delete it first")
    return target
