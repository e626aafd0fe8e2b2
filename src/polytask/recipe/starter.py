"""Writes a first recipe for the user's own files, with the reasons for what was guessed as comments."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import yaml

from polytask.recipe.records import check_task_name
from polytask.settings import TaskSpec
from polytask.tasks.guess import Guess, guess_task
from polytask.tasks.splitting import Parts, plan_split, write_parts
from polytask.types import KINDS_WITHOUT_LABEL, UserError, unknown

HEADER = """\
# Written by `polytask init`. Check each task: the comments above it say what was guessed and why.
#   polytask check {name}     reads the data and shows what would be trained
#   polytask train {name}     trains it
# All fields and their defaults: docs/reference/recipe.md
"""

FILL_IN = {
    "text": "the column with the text, or [COLUMN, COLUMN] for a pair",
    "label": "the column with the labels; then check that `kind` is right (classes, yes_no, multilabel, tokens, or "
    "score, with its range if it has one)",
    "dev": "a file with dev rows",
}
"""What to write in a field that was left blank."""
MAX_COLUMNS = 20
"""Columns listed in a comment."""


@dataclass(frozen=True)
class Starter:
    """The text of a new recipe, and how it was guessed."""

    text: str
    reasons: Mapping[str, list[str]]
    """For each task, what was guessed and why."""
    blanks: tuple[str, ...] = ()
    """Fields that must be filled in before the recipe can be used, such as tasks.topic.label."""


def start_recipe(
    target: Path,
    trains: Mapping[str, str],
    devs: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    texts: Mapping[str, Sequence[str]] | None = None,
) -> Starter:
    """Writes a recipe for these training files (by task), with paths relative to the recipe's folder.

    Dev files, label columns and text columns that are not given are guessed. A task without a dev file gets one: a
    fifth of its rows, in new files next to the recipe. Several tasks can use the same file; each gets its own label
    column. A field that cannot be guessed is left blank.
    """
    devs, labels, texts = devs or {}, labels or {}, texts or {}
    _check_names(trains, {"--dev": devs, "--label": labels, "--text": texts})
    reasons: dict[str, list[str]] = {}
    tasks, splits, blanks, label_columns = [], [], [], dict(labels)
    for name, train in trains.items():
        others = [other for other in trains if other != name and _same_file(trains[other], train)]
        taken = [label_columns[other] for other in others if other in label_columns]
        guess = guess_task(
            name, train, dev=devs.get(name), label=labels.get(name), text=texts.get(name), others=others, taken=taken
        )
        if isinstance(guess.spec.label, str):
            label_columns[name] = guess.spec.label
        spec, reasons[name], split = _with_dev(guess, target.parent)
        tasks.append(_task_text(spec, reasons[name], target.parent, guess.columns))
        blanks += [f"tasks.{name}.{field}" for field in _blanks(spec)]
        splits += [split] if split else []
    for split in splits:  # only after all tasks' files have been read without an error
        write_parts(split)
    return Starter(_recipe_text(target, tasks), reasons, tuple(blanks))


def _recipe_text(target: Path, tasks: Sequence[str]) -> str:
    header = HEADER.format(name=target.name)
    start = {"name": target.stem, "encoder": "minilm", "max_length": 128}
    settings = {
        "sampler": "proportional",
        "optimizer": {"name": "fused_adamw", "lr": 1.0e-4},
        "train": {"epochs": 4, "batch_size": 16, "precision": "auto", "head_lr": 1.0e-3},
    }
    first, last = (yaml.safe_dump(part, sort_keys=False) for part in (start, settings))
    return f"{header}{first}tasks:\n{''.join(tasks)}{last}"


def _check_names(trains: Mapping[str, str], given: Mapping[str, Mapping[str, object]]) -> None:
    if not trains:
        raise UserError("init: pass at least one task as --task NAME=FILE")
    for name in trains:
        check_task_name(name, f"init: --task {name}=...")
    for option, by_task in given.items():
        for name in by_task:
            if name not in trains:
                raise UserError(unknown(f"init: {option} {name}=...", name, trains, "--task"))


def _same_file(one: str, other: str) -> bool:
    return os.path.abspath(one) == os.path.abspath(other)


def _with_dev(guess: Guess, folder: Path) -> tuple[TaskSpec, list[str], Parts | None]:
    """The task with a dev file; if it has none, also the split of its file into train and dev."""
    if guess.has_dev:
        return guess.spec, guess.reasons, None
    if not guess.spec.text:
        reason = "dev: not split off, because the text column is unknown; pass --text, or fill in both fields"
        return guess.spec, [*guess.reasons[:-1], reason], None
    parts = plan_split(guess.spec, folder / "data")
    unit = "text" if parts.kept_together == "texts" else "pair"
    reason = f"dev: a fifth of the rows, chosen by hash so that no {unit} is in both"
    dropped = [f"{parts.dropped:,} rows could not be read and are in neither file"] if parts.dropped else []
    # The new files are UTF-8 with commas, whatever the original file was.
    spec = replace(guess.spec, train=str(parts.train), dev=str(parts.dev), encoding=None, delimiter=None)
    return spec, [*guess.reasons[:-1], reason, *dropped], parts


def _blanks(spec: TaskSpec) -> list[str]:
    optional = ("label",) if spec.kind in KINDS_WITHOUT_LABEL else ()
    return [field for field in FILL_IN if field not in optional and not getattr(spec, field)]


def _task_text(spec: TaskSpec, reasons: list[str], folder: Path, columns: Sequence[str]) -> str:
    content = {
        "kind": spec.kind,
        **({"range": [int(edge) if edge == int(edge) else edge for edge in spec.range]} if spec.range else {}),
        "text": list(spec.text) if len(spec.text) > 1 else "".join(spec.text) or None,
        **({} if spec.kind in KINDS_WITHOUT_LABEL else {"label": spec.label}),
        "train": _relative(folder, spec.train) if spec.train else None,
        "dev": _relative(folder, spec.dev) if spec.dev else None,
        **{field: value for field in ("separator", "encoding", "delimiter") if (value := getattr(spec, field))},
    }
    comments = "".join(f"  # {_one_line(reason)}\n" for reason in reasons)
    body = yaml.safe_dump({spec.name: content}, sort_keys=False, allow_unicode=True, width=1000)
    for field in _blanks(spec):
        known = f" (columns: {_list_columns(columns)})" if field != "dev" else ""
        comment = _one_line(f"# FILL IN: {FILL_IN[field]}{known}")
        body = body.replace(f"\n  {field}: null\n", f"\n  {field}:  {comment}\n")
    return comments + "".join(f"  {line}\n" for line in body.splitlines())


def _list_columns(columns: Sequence[str]) -> str:
    names = [column for column in columns if column]
    more = f" and {len(names) - MAX_COLUMNS:,} more" if len(names) > MAX_COLUMNS else ""
    return ", ".join(names[:MAX_COLUMNS]) + more


def _one_line(reason: str) -> str:
    """Replaces unprintable characters: a class name may contain line breaks, which would end the comment."""
    return "".join(character if character.isprintable() else " " for character in reason)


def _relative(folder: Path, source: str) -> str:
    """The path relative to the recipe's folder, or the absolute path of a file outside of it."""
    if source.startswith(("sample:", "hub:")):
        return source
    absolute = os.path.abspath(source)
    relative = os.path.relpath(absolute, os.path.abspath(folder))
    return absolute if relative.startswith("..") else relative
