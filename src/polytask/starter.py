"""A first recipe from the user's own files, with what was guessed said out loud. Knows files and recipes, no model."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import yaml

from polytask.recipe import TASK_NAME
from polytask.tasks.guess import guess_task
from polytask.tasks.splitting import Parts, plan_split, write_parts
from polytask.types import TaskSpec, UserError

HEADER = """\
# Made by `polytask init`. Look at each task: what was guessed stands above it.
#   polytask check {name}     reads the data and shows what would be trained
#   polytask train {name}     trains it
# Every field and its default: docs/recipes.md
"""


@dataclass(frozen=True)
class Starter:
    """The text of a recipe, and what was guessed on the way."""

    text: str
    reasons: Mapping[str, list[str]]


def start_recipe(target: Path, trains: Mapping[str, str], devs: Mapping[str, str] | None = None) -> Starter:
    """A recipe for these training files, with paths relative to where the recipe will stand.

    A task without a dev file gets one: a fifth of its rows, in new files beside the recipe.
    """
    if not trains:
        raise UserError("init: at least one task is needed, as --task NAME=FILE")
    for name in (devs or {}).keys() - trains.keys():
        raise UserError(f"init: --dev {name}=...: there is no --task {name}")
    reasons: dict[str, list[str]] = {}
    tasks, planned = [], []
    for name, train in trains.items():
        if not TASK_NAME.fullmatch(name):
            raise UserError(f"init: --task {name}=...: a task's name is letters, digits, - and _, at most 64")
        spec, reasons[name], parts = _one_task(name, train, (devs or {}).get(name), target.parent)
        tasks.append(_task_text(spec, reasons[name], target.parent))
        planned += [parts] if parts else []
    for parts in planned:  # when no other task's file can be wrong any more
        write_parts(parts)
    settings = {
        "sampler": "proportional",
        "optimizer": {"name": "fused_adamw", "lr": 1.0e-4},
        "train": {"epochs": 4, "batch_size": 16, "precision": "auto", "head_lr": 1.0e-3},
    }
    head = HEADER.format(name=target.name) + yaml.safe_dump(
        {"name": target.stem, "encoder": "minilm", "max_length": 128}, sort_keys=False
    )
    return Starter(head + "tasks:\n" + "".join(tasks) + yaml.safe_dump(settings, sort_keys=False), reasons)


def _one_task(name: str, train: str, dev: str | None, folder: Path) -> tuple[TaskSpec, list[str], Parts | None]:
    guess = guess_task(name, train)
    if dev is not None:
        return replace(guess.spec, dev=dev), [*guess.reasons[:-1], f"dev: {dev}, as given"], None
    if guess.has_dev:
        return guess.spec, guess.reasons, None
    parts = plan_split(guess.spec, folder / "data")
    what = "text" if parts.kept_together == "texts" else "pair"
    said = f"dev: a fifth of the rows, chosen by hash so that no {what} is in both"
    dropped = [f"{parts.dropped:,} rows could not be read and are in neither file"] if parts.dropped else []
    spec = replace(guess.spec, train=str(parts.train), dev=str(parts.dev))
    return spec, [*guess.reasons[:-1], said, *dropped], parts


def _task_text(spec: TaskSpec, reasons: list[str], folder: Path) -> str:
    content = {
        "kind": spec.kind,
        **({"range": [int(edge) if edge == int(edge) else edge for edge in spec.range]} if spec.range else {}),
        "text": list(spec.text) if spec.is_pair else spec.text[0],
        "label": spec.label,
        "train": _from(folder, spec.train),
        "dev": _from(folder, spec.dev),
    }
    comments = "".join(f"  # {_one_line(reason)}\n" for reason in reasons)
    body = yaml.safe_dump({spec.name: content}, sort_keys=False, allow_unicode=True, width=1000)
    return comments + "".join(f"  {line}\n" for line in body.splitlines())


def _one_line(reason: str) -> str:
    """A class's name may hold line ends, which would end the comment."""
    return "".join(letter if letter.isprintable() else " " for letter in reason)


def _from(folder: Path, source: str) -> str:
    """A file as seen from the recipe's folder; one outside of it by its full path."""
    if source.startswith(("sample:", "hub:")):
        return source
    full = os.path.abspath(source)
    near = os.path.relpath(full, os.path.abspath(folder))
    return full if near.startswith("..") else near
