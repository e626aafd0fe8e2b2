"""Checkpoints: everything a step needs, as safetensors and JSON. Nothing is ever unpickled.

A checkpoint appears whole or not at all: it is written beside, flushed to the disk, and renamed. Its manifest, the last
file to be written, has the size and SHA-256 of every other, and nothing is read that does not agree with it. Knows
state dictionaries; knows no method.
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
"""More bytes than the JSON and the headers of a checkpoint take beside its tensors and its state."""


@dataclass(frozen=True)
class Checkpoint:
    """Tensors by file and name, and a JSON state."""

    tensors: Mapping[str, Mapping[str, Tensor]]
    state: Mapping[str, Any]
    needs: tuple[str, ...] = ()
    """The names of the checkpoints beside it that it is worth nothing without: the best models so far."""


@dataclass(frozen=True)
class File:
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """What a checkpoint says of itself."""

    format: int
    step: int
    files: Mapping[str, File]
    needs: tuple[str, ...]


class Damaged(UserError):
    """A checkpoint that must not be used: which file, and what is wrong with it."""


@dataclass(frozen=True)
class Found:
    """The checkpoint to go on from, and the newer ones that had to be passed over."""

    path: Path | None
    damaged: Mapping[Path, str] = field(default_factory=dict)
    """Each with the reason, the newest first."""


# --- writing ----------------------------------------------------------------------------------------------------------
def write_checkpoint(folder: Path, checkpoint: Checkpoint) -> None:
    """Makes `folder`, whole or not at all; one that was there is replaced."""
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
            f"{folder}: the checkpoint could not be written: {why}; those before it are as they were. When there is "
            "room, go on by --resume"
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
    """The checkpoint in a folder, if every file of it is what was written; else `Damaged`."""
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
    """What the checkpoint says of itself, when its files agree with it; else `Damaged`."""
    manifest = _read_manifest(folder)
    for name, file in manifest.files.items():
        _check_file(folder / name, file)
    return manifest


def _read_manifest(folder: Path) -> Manifest:
    path = folder / MANIFEST
    content = _read_json(path)
    if content.get("format") != FORMAT:
        raise Damaged(f"{path}: format {content.get('format')!r} is not known to this version, which reads {FORMAT}")
    try:
        manifest: Manifest = convert(content, Manifest, str(path))
    except (ValueError, OverflowError) as error:
        raise Damaged(str(error)) from None
    names = [
        *(n for n in manifest.files if not FILE.fullmatch(n)),
        *(n for n in manifest.needs if not NEEDED.fullmatch(n)),
    ]
    if names:
        raise Damaged(f"{path}: names {names[0]!r}, which no checkpoint has")
    if STATE not in manifest.files:
        raise Damaged(f"{path}: names no {STATE}")
    if manifest.step != step_of(folder):
        raise Damaged(f"{path}: it is of step {manifest.step}")
    return manifest


def _check_file(path: Path, file: File) -> None:
    try:
        if not path.is_file() or path.is_symlink():
            raise Damaged(f"{path}: there is no such file")
        size = path.stat().st_size
        if size != file.bytes:
            raise Damaged(f"{path}: {size:,} bytes long, and {file.bytes:,} were written")
        if sha256(path) != file.sha256:
            raise Damaged(f"{path}: not what was written: its SHA-256 is another")
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
        raise Damaged(f"{path}: fields are needed, found {type(content).__name__}")
    return content


# --- the checkpoints of a run -----------------------------------------------------------------------------------------
def numbered(checkpoints: Path, prefix: str) -> dict[int, Path]:
    """The checkpoints with this prefix by their step, lowest first."""
    found = [path for path in checkpoints.glob(f"{prefix}*") if path.is_dir()]
    steps = {int(number): path for path in found if (number := path.name.removeprefix(prefix)).isdecimal()}
    return dict(sorted(steps.items()))


def step_of(path: Path) -> int:
    """`step-120` or `best-120` -> 120."""
    return int(path.name.rpartition("-")[2])


def newest(checkpoints: Path) -> Path | None:
    """The last checkpoint that is whole."""
    return newest_good(checkpoints).path


def newest_good(checkpoints: Path, alone: bool = False) -> Found:
    """The last checkpoint that is whole and whose needed ones are; with `alone`, whatever became of these."""
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
    found = {}
    for path in paths:
        try:
            check(path)
        except Damaged as error:
            found[path] = str(error)
    return found


def set_aside(damaged: Iterable[Path]) -> None:
    """Takes damaged checkpoints out of the row. They go with the old ones, when a new one is whole."""
    for path in damaged:
        aside = path.with_name(f"{DAMAGED}{path.name}")
        shutil.rmtree(aside, ignore_errors=True)
        if path.exists():
            path.rename(aside)


def remove_old(checkpoints: Path, keep: int) -> None:
    """Leaves the newest `keep` checkpoints and what they need. Called only when a newer checkpoint is whole."""
    steps = numbered(checkpoints, STEP)
    kept = list(steps)[-keep:]
    try:
        needed = {name for step in kept for name in _read_manifest(steps[step]).needs}
    except Damaged:
        return  # what it needs cannot be told any more: everything stays
    old = [path for step, path in steps.items() if step not in kept]
    old += [path for path in numbered(checkpoints, BEST).values() if path.name not in needed]
    for path in [*old, *checkpoints.glob(f"{DAMAGED}*")]:
        shutil.rmtree(path, ignore_errors=True)


# --- states as flat mappings ------------------------------------------------------------------------------------------
def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimizer's state as one flat mapping, `parameter/field` -> tensor (as tensors also what is a number)."""
    names = _names(optimizer)
    return {
        f"{names[parameter]}/{field}": torch.as_tensor(value)
        for parameter, state in optimizer.state.items()
        for field, value in state.items()
    }


def load_optimizer_tensors(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Takes back what `optimizer_tensors` gave; each parameter keeps its own step count."""
    parameters = {name: parameter for parameter, name in _names(optimizer).items()}
    # Moments live with their parameter; step counts on the CPU, except for torch's fused kernels.
    counts_with_parameter = {
        p for group in optimizer.param_groups if group.get("fused") or group.get("capturable") for p in group["params"]
    }
    optimizer.state.clear()
    for key, value in tensors.items():
        name, _, field = key.rpartition("/")
        parameter = parameters[name]
        beside = field != "step" or parameter in counts_with_parameter
        optimizer.state[parameter][field] = value.to(parameter.device if beside else "cpu", copy=True)


def _names(optimizer: torch.optim.Optimizer) -> dict[Tensor, str]:
    return {
        parameter: name
        for group in optimizer.param_groups
        for name, parameter in zip(group["param_names"], group["params"], strict=True)
    }


def prefixed(states: Iterable[tuple[str, Mapping[str, Tensor]]]) -> dict[str, Tensor]:
    """Several state dictionaries as one, `owner/name` -> tensor."""
    return {f"{owner}/{name}": tensor for owner, state in states for name, tensor in state.items()}


def owned(tensors: Mapping[str, Tensor], owner: str) -> dict[str, Tensor]:
    """One owner's part of what `prefixed` made."""
    return {key.removeprefix(f"{owner}/"): t for key, t in tensors.items() if key.startswith(f"{owner}/")}
