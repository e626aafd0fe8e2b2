"""Checkpoints: everything that training continues from, as safetensors and JSON. Nothing is ever unpickled.

A checkpoint appears whole or not at all: it is written to a hidden folder, flushed to the disk, and renamed. Its
manifest, written last, has the size and SHA-256 of every other file, and a file that differs is not read. Knows state
dictionaries; knows no method.
"""

import json
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from polytask.disk.atomic import atomic_folder
from polytask.disk.hashing import sha256
from polytask.disk.records import convert
from polytask.disk.writable import Unwritable
from polytask.processes import Processes
from polytask.types import UserError

FORMAT = 1
MANIFEST = "manifest.json"
STATE = "state.json"
STEP = "step-"
BEST = "best-"
DAMAGED = "damaged-"
FILE = re.compile(r"[a-z]+\.(safetensors|json)")
NEEDED = re.compile(rf"{BEST}\d+")
EARLIER = re.compile(r"(?<![^/])trunk\.")
"""The encoder's prefix in checkpoints of earlier versions."""
HEADERS = 2**20
"""An upper bound in bytes of a checkpoint's manifest and file headers."""


@dataclass(frozen=True)
class Checkpoint:
    """Tensors by file and name, and a JSON state."""

    tensors: Mapping[str, Mapping[str, Tensor]]
    state: Mapping[str, Any]
    needs: tuple[str, ...] = ()
    """The names of the other checkpoints that it needs: the best models so far."""


def from_main(checkpoint: Checkpoint | None, processes: Processes) -> Checkpoint:
    """The checkpoint that the first process has read; the others pass None."""
    if not processes.several:
        assert checkpoint is not None
        return checkpoint
    names, flat = None, None
    if checkpoint is not None:
        places = [(part, name) for part, own in checkpoint.tensors.items() for name in own]
        flat = {str(number): checkpoint.tensors[part][name] for number, (part, name) in enumerate(places)}
        names = json.dumps([list(checkpoint.tensors), places, checkpoint.state, checkpoint.needs])
    parts, places, state, needs = json.loads(processes.text_from_main(names))
    received = processes.from_main(flat)
    tensors: dict[str, dict[str, Tensor]] = {part: {} for part in parts}
    for number, (part, name) in enumerate(places):
        tensors[part][name] = received[str(number)]
    return Checkpoint(tensors, state, tuple(needs))


@dataclass(frozen=True)
class File:
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """The content of manifest.json."""

    format: int
    step: int
    files: Mapping[str, File]
    needs: tuple[str, ...]


class Damaged(UserError):
    """A checkpoint that must not be used. The message names the file and what is wrong with it."""


@dataclass(frozen=True)
class Found:
    """The checkpoint to resume from, and the newer ones that are damaged."""

    path: Path | None
    damaged: Mapping[Path, str] = field(default_factory=dict)
    """By checkpoint, newest first: the reason."""


# --- writing ----------------------------------------------------------------------------------------------------------
def write_checkpoint(folder: Path, checkpoint: Checkpoint) -> None:
    """Writes a checkpoint to `folder`, whole or not at all; an existing one is replaced."""
    state = json.dumps(checkpoint.state, indent=1)
    try:
        _check_room(folder, checkpoint.tensors, len(state))
        with atomic_folder(folder) as fresh:
            for name, tensors in checkpoint.tensors.items():
                plain = {key: t.detach().cpu().contiguous() for key, t in tensors.items()}
                save_file(plain, fresh / f"{name}.safetensors")
            (fresh / STATE).write_text(state, encoding="utf-8")
            _write_manifest(fresh, step_of(folder), checkpoint.needs)
    except (OSError, SafetensorError) as error:
        why = error.reason if isinstance(error, Unwritable) else error
        raise UserError(
            f"{folder}: the checkpoint could not be written: {why}; earlier checkpoints are unchanged. When there is "
            "room, continue with --resume"
        ) from error


def _check_room(folder: Path, tensors: Mapping[str, Mapping[str, Tensor]], state: int) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    needed = sum(t.numel() * t.element_size() for part in tensors.values() for t in part.values()) + state + HEADERS
    free = shutil.disk_usage(folder.parent).free
    if free < needed:
        raise OSError(f"it needs {needed / 2**20:,.1f} MiB, and the disk has {free / 2**20:,.1f} MiB left")


def _write_manifest(folder: Path, step: int, needs: tuple[str, ...]) -> None:
    files = {path.name: {"bytes": path.stat().st_size, "sha256": sha256(path)} for path in sorted(folder.iterdir())}
    content = {"format": FORMAT, "step": step, "files": files, "needs": needs}
    (folder / MANIFEST).write_text(json.dumps(content, indent=1), encoding="utf-8")


# --- reading ----------------------------------------------------------------------------------------------------------
def read_checkpoint(folder: Path) -> Checkpoint:
    """The checkpoint in a folder; `Damaged` if a file is not what was written."""
    manifest = check(folder)
    tensors = {}
    for name in manifest.files:
        if name.endswith(".safetensors"):
            try:
                loaded = load_file(folder / name)
            except (OSError, SafetensorError) as error:
                raise Damaged(f"{folder / name}: {error}") from None
            tensors[name.removesuffix(".safetensors")] = {EARLIER.sub("encoder.", k): t for k, t in loaded.items()}
    return Checkpoint(tensors, _read_json(folder / STATE), manifest.needs)


def check(folder: Path) -> Manifest:
    """The manifest of a checkpoint; `Damaged` if its files do not agree with it."""
    manifest = _read_manifest(folder)
    for name, file in manifest.files.items():
        _check_file(folder / name, file)
    return manifest


def _read_manifest(folder: Path) -> Manifest:
    path = folder / MANIFEST
    content = _read_json(path)
    if content.get("format") != FORMAT:
        raise Damaged(f"{path}: format {content.get('format')!r} is unknown to this version, which reads {FORMAT}")
    try:
        manifest: Manifest = convert(content, Manifest, str(path))
    except (ValueError, OverflowError) as error:
        raise Damaged(str(error)) from None
    names = [
        *(n for n in manifest.files if not FILE.fullmatch(n)),
        *(n for n in manifest.needs if not NEEDED.fullmatch(n)),
    ]
    if names:
        raise Damaged(f"{path}: lists {names[0]!r}, which is not a file of a checkpoint")
    if STATE not in manifest.files:
        raise Damaged(f"{path}: does not list {STATE}")
    if manifest.step != step_of(folder):
        raise Damaged(f"{path}: belongs to step {manifest.step}")
    return manifest


def _check_file(path: Path, file: File) -> None:
    try:
        if not path.is_file() or path.is_symlink():
            raise Damaged(f"{path}: there is no such file")
        size = path.stat().st_size
        if size != file.bytes:
            raise Damaged(f"{path}: has {size:,} bytes, but {file.bytes:,} were written")
        if sha256(path) != file.sha256:
            raise Damaged(f"{path}: its SHA-256 differs from the one in {MANIFEST}")
    except OSError as error:
        raise Damaged(f"{path}: cannot be read: {error.strerror}") from None


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise Damaged(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise Damaged(f"{path}: not JSON: {error}") from None
    if not isinstance(content, dict):
        raise Damaged(f"{path}: must be a JSON object, found {type(content).__name__}")
    return content


# --- the checkpoints of a run -----------------------------------------------------------------------------------------
def numbered(checkpoints: Path, prefix: str) -> dict[int, Path]:
    """The checkpoints with this prefix by step, lowest first."""
    folders = [path for path in checkpoints.glob(f"{prefix}*") if path.is_dir()]
    steps = {int(number): path for path in folders if (number := path.name.removeprefix(prefix)).isdecimal()}
    return dict(sorted(steps.items()))


def step_of(path: Path) -> int:
    """The step of a checkpoint: 120 for `step-120` and `best-120`."""
    return int(path.name.rpartition("-")[2])


def newest(checkpoints: Path) -> Path | None:
    """The newest whole checkpoint."""
    return newest_good(checkpoints).path


def newest_good(checkpoints: Path, alone: bool = False) -> Found:
    """The newest checkpoint that is whole, together with those it needs; with `alone`, these may be damaged."""
    damaged = {}
    for path in reversed(numbered(checkpoints, STEP).values()):
        try:
            needed = _damaged([checkpoints / name for name in check(path).needs])
        except Damaged as error:
            damaged[path] = str(error)
            continue
        if not needed or alone:
            return Found(path, {**damaged, **needed})
        damaged[path] = next(iter(needed.values()))
    return Found(None, damaged)


def _damaged(paths: Iterable[Path]) -> dict[Path, str]:
    reasons = {}
    for path in paths:
        try:
            check(path)
        except Damaged as error:
            reasons[path] = str(error)
    return reasons


def set_aside(damaged: Iterable[Path]) -> None:
    """Renames damaged checkpoints, so that they are ignored. They are removed when a new one is whole."""
    for path in damaged:
        aside = path.with_name(f"{DAMAGED}{path.name}")
        shutil.rmtree(aside, ignore_errors=True)
        if path.exists():
            path.rename(aside)


def remove_old(checkpoints: Path, keep: int) -> None:
    """Removes all but the newest `keep` checkpoints and those they need. Called only after a whole one was written."""
    steps = numbered(checkpoints, STEP)
    kept = list(steps)[-keep:]
    try:
        needed = {name for step in kept for name in _read_manifest(steps[step]).needs}
    except Damaged:
        return  # which checkpoints it needs is unknown, so all are kept
    old = [path for step, path in steps.items() if step not in kept]
    old += [path for path in numbered(checkpoints, BEST).values() if path.name not in needed]
    for path in [*old, *checkpoints.glob(f"{DAMAGED}*")]:
        shutil.rmtree(path, ignore_errors=True)


# --- states as flat mappings ------------------------------------------------------------------------------------------
def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimizer's state as one flat mapping `parameter/field` -> tensor; numbers become tensors too."""
    names = _names(optimizer)
    return {
        f"{names[parameter]}/{field}": torch.as_tensor(value)
        for parameter, state in optimizer.state.items()
        for field, value in state.items()
    }


def load_optimizer_tensors(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Loads what `optimizer_tensors` returned; each parameter keeps its own step count."""
    parameters = {name: parameter for parameter, name in _names(optimizer).items()}
    # Moments are on the parameter's device; step counts on the CPU, except with torch's fused kernels.
    counts_on_device = {
        p for group in optimizer.param_groups if group.get("fused") or group.get("capturable") for p in group["params"]
    }
    optimizer.state.clear()
    for key, value in tensors.items():
        name, _, field = key.rpartition("/")
        parameter = parameters[name]
        on_device = field != "step" or parameter in counts_on_device
        optimizer.state[parameter][field] = value.to(parameter.device if on_device else "cpu", copy=True)


def _names(optimizer: torch.optim.Optimizer) -> dict[Tensor, str]:
    return {
        parameter: name
        for group in optimizer.param_groups
        for name, parameter in zip(group["param_names"], group["params"], strict=True)
    }


def prefixed(states: Iterable[tuple[str, Mapping[str, Tensor]]]) -> dict[str, Tensor]:
    """Joins several state dictionaries into one, `owner/name` -> tensor."""
    return {f"{owner}/{name}": tensor for owner, state in states for name, tensor in state.items()}


def owned(tensors: Mapping[str, Tensor], owner: str) -> dict[str, Tensor]:
    """One owner's part of a mapping that `prefixed` returned."""
    return {key.removeprefix(f"{owner}/"): t for key, t in tensors.items() if key.startswith(f"{owner}/")}
