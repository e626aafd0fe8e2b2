"""Checkpoints: everything a step needs, as safetensors and JSON. Nothing is ever unpickled.

A checkpoint appears whole or not at all: it is written beside, flushed to the disk, and renamed. Knows state
dictionaries; knows no method.
"""

import json
import shutil
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from polytask.whole import whole_folder

STEP = "step-"
BEST = "best-"


@dataclass(frozen=True)
class Checkpoint:
    """Tensors by file and name, and a JSON state."""

    tensors: Mapping[str, Mapping[str, Tensor]]
    state: Mapping[str, Any]


def write_checkpoint(folder: Path, checkpoint: Checkpoint) -> None:
    """Makes `folder`, whole or not at all; one that was there is replaced."""
    with whole_folder(folder) as fresh:
        for name, tensors in checkpoint.tensors.items():
            save_file({key: t.detach().cpu().contiguous() for key, t in tensors.items()}, fresh / f"{name}.safetensors")
        (fresh / "state.json").write_text(json.dumps(checkpoint.state, indent=1), encoding="utf-8")


def read_checkpoint(folder: Path) -> Checkpoint:
    tensors = {file.stem: load_file(file) for file in sorted(folder.glob("*.safetensors"))}
    return Checkpoint(tensors, json.loads((folder / "state.json").read_text(encoding="utf-8")))


def numbered(checkpoints: Path, prefix: str) -> dict[int, Path]:
    """The whole checkpoints with this prefix by their step, lowest first."""
    found = {step_of(path): path for path in checkpoints.glob(f"{prefix}*") if path.is_dir()}
    return dict(sorted(found.items()))


def step_of(path: Path) -> int:
    """`step-120` or `best-120` -> 120."""
    return int(path.name.rpartition("-")[2])


def newest(checkpoints: Path) -> Path | None:
    """The last whole checkpoint to go on from."""
    return max(numbered(checkpoints, STEP).items(), default=(0, None))[1]


def remove_old(checkpoints: Path, keep: int, best_steps: Collection[int]) -> None:
    """Leaves the newest `keep` checkpoints and the best models. Called only when a newer checkpoint is whole."""
    steps = numbered(checkpoints, STEP)
    for step in list(steps)[:-keep]:
        shutil.rmtree(steps[step])
    for step, path in numbered(checkpoints, BEST).items():
        if step not in best_steps:
            shutil.rmtree(path)


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
