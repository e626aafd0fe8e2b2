"""A first recipe from the user's own files, with what was guessed said out loud. Knows files and recipes, no model."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import yaml

from polytask.recipe.records import TASK_NAME
from polytask.tasks.guess import Guess, guess_task
from polytask.tasks.splitting import Parts, plan_split, write_parts
from polytask.types import TaskSpec, UserError, unknown

HEADER = """\
# Made by `polytask init`. Look at each task: what was guessed stands above it.
#   polytask check {name}     reads the data and shows what would be trained
#   polytask train {name}     trains it
# Every field and its default: docs/recipes.md
"""


FILL_IN = {
    "text": "the column with the text, or [COLUMN, COLUMN] for a pair",
    "label": "the column with the labels; then see whether `kind` is right (classes, yes_no, or score with its range)",
    "dev": "a file with dev rows",
}
"""What belongs into a field that had to be left blank."""
COLUMNS_NAMED = 20


@dataclass(frozen=True)
class Starter:
    """The text of a recipe, and what was guessed on the way."""

    text: str
    reasons: Mapping[str, list[str]]
    blanks: tuple[str, ...] = ()
    """Fields to fill in before the recipe can be used, such as tasks.topic.label."""


def start_recipe(
    target: Path,
    trains: Mapping[str, str],
    devs: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    texts: Mapping[str, Sequence[str]] | None = None,
) -> Starter:
    """A recipe for these training files, with paths relative to where the recipe will stand.

    Dev files, label columns and text columns are guessed for the tasks that they are not given for. A task without a
    dev file gets one: a fifth of its rows, in new files beside the recipe. Several tasks can have the same file; each
    gets a label of its own. A field for which nothing is found is left blank.
    """
    devs, labels, texts = devs or {}, labels or {}, texts or {}
    _check_names(trains, {"--dev": devs, "--label": labels, "--text": texts})
    reasons: dict[str, list[str]] = {}
    tasks, planned, blanks, chosen = [], [], [], dict(labels)
    for name, train in trains.items():
        others = [other for other in trains if other != name and _same_file(trains[other], train)]
        taken = [chosen[other] for other in others if other in chosen]
        guess = guess_task(
            name, train, dev=devs.get(name), label=labels.get(name), text=texts.get(name), others=others, taken=taken
        )
        if guess.spec.label is not None:
            chosen[name] = guess.spec.label
        spec, reasons[name], parts = _with_dev(guess, target.parent)
        tasks.append(_task_text(spec, reasons[name], target.parent, guess.columns))
        blanks += [f"tasks.{name}.{field}" for field in _blanks(spec)]
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
    text = head + "tasks:\n" + "".join(tasks) + yaml.safe_dump(settings, sort_keys=False)
    return Starter(text, reasons, tuple(blanks))


def _check_names(trains: Mapping[str, str], given: Mapping[str, Mapping[str, object]]) -> None:
    if not trains:
        raise UserError("init: at least one task is needed, as --task NAME=FILE")
    for name in trains:
        if not TASK_NAME.fullmatch(name):
            raise UserError(f"init: --task {name}=...: a task's name is letters, digits, - and _, at most 64")
    for option, by_task in given.items():
        for name in by_task:
            if name not in trains:
                raise UserError(unknown(f"init: {option} {name}=...", name, trains, "--task"))


def _same_file(one: str, other: str) -> bool:
    return os.path.abspath(one) == os.path.abspath(other)


def _with_dev(guess: Guess, folder: Path) -> tuple[TaskSpec, list[str], Parts | None]:
    """The task with a dev file, if need be one that is split off its only file."""
    if guess.has_dev:
        return guess.spec, guess.reasons, None
    if not guess.spec.text:
        said = "dev: not split off, because the text is not known: give it with --text, or fill in both"
        return guess.spec, [*guess.reasons[:-1], said], None
    parts = plan_split(guess.spec, folder / "data")
    what = "text" if parts.kept_together == "texts" else "pair"
    said = f"dev: a fifth of the rows, chosen by hash so that no {what} is in both"
    dropped = [f"{parts.dropped:,} rows could not be read and are in neither file"] if parts.dropped else []
    # The new files are UTF-8 with commas, whatever the file was.
    spec = replace(guess.spec, train=str(parts.train), dev=str(parts.dev), encoding=None, delimiter=None)
    return spec, [*guess.reasons[:-1], said, *dropped], parts


def _blanks(spec: TaskSpec) -> list[str]:
    return [field for field in FILL_IN if not getattr(spec, field)]


def _task_text(spec: TaskSpec, reasons: list[str], folder: Path, columns: Sequence[str]) -> str:
    content = {
        "kind": spec.kind,
        **({"range": [int(edge) if edge == int(edge) else edge for edge in spec.range]} if spec.range else {}),
        "text": list(spec.text) if spec.is_pair else "".join(spec.text) or None,
        "label": spec.label,
        "train": _from(folder, spec.train),
        "dev": _from(folder, spec.dev) if spec.dev else None,
        **{field: value for field in ("encoding", "delimiter") if (value := getattr(spec, field))},
    }
    comments = "".join(f"  # {_one_line(reason)}\n" for reason in reasons)
    body = yaml.safe_dump({spec.name: content}, sort_keys=False, allow_unicode=True, width=1000)
    for field in _blanks(spec):
        known = f" (columns: {_some(columns)})" if field != "dev" else ""
        comment = _one_line(f"# FILL IN: {FILL_IN[field]}{known}")
        body = body.replace(f"\n  {field}: null\n", f"\n  {field}:  {comment}\n")
    return comments + "".join(f"  {line}\n" for line in body.splitlines())


def _some(columns: Sequence[str]) -> str:
    named = [column for column in columns if column]
    more = f" and {len(named) - COLUMNS_NAMED:,} more" if len(named) > COLUMNS_NAMED else ""
    return ", ".join(named[:COLUMNS_NAMED]) + more


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
