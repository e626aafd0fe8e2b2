"""Writes a first recipe for the user's own files, with the reasons for what was guessed as comments."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import yaml

from polytask.recipe.records import check_task_name
from polytask.settings import TaskSpec
from polytask.tasks.guess import Guess, guess_task
from polytask.tasks.guess_shared import with_shared_rows
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
    labels: Mapping[str, str | Sequence[str]] | None = None,
    texts: Mapping[str, Sequence[str]] | None = None,
) -> Starter:
    """Writes a recipe for these training files (by task), with paths relative to the recipe's folder.

    Dev files, label columns and text columns that are not given are guessed. Several label columns are the classes of
    kind multilabel, and have 0 and 1. A task without a dev file gets one: a
    fifth of its rows, in new files next to the recipe. Several tasks can use the same file; each gets its own label
    column, and they share rows if some of their labels are empty. A field that cannot be guessed is left blank.
    """
    devs, labels, texts = devs or {}, labels or {}, texts or {}
    _check_names(trains, {"--dev": devs, "--label": labels, "--text": texts})
    guesses = with_shared_rows(_guess_tasks(trains, devs, labels, texts))
    splits = _plan_splits(guesses.values(), target.parent)
    reasons: dict[str, list[str]] = {}
    tasks, blanks = [], []
    for name, guess in guesses.items():
        spec, reasons[name] = _with_dev(guess, splits.get(_rows_name(guess.spec)))
        tasks.append(_task_text(spec, reasons[name], target.parent, guess.columns))
        blanks += [f"tasks.{name}.{field}" for field in _blanks(spec)]
    for split in splits.values():  # only after all tasks' files have been read without an error
        write_parts(split)
    return Starter(_recipe_text(target, tasks), reasons, tuple(blanks))


def _guess_tasks(
    trains: Mapping[str, str],
    devs: Mapping[str, str],
    labels: Mapping[str, str | Sequence[str]],
    texts: Mapping[str, Sequence[str]],
) -> dict[str, Guess]:
    guesses: dict[str, Guess] = {}
    columns = {name: [given] if isinstance(given, str) else list(given) for name, given in labels.items()}
    for name, train in trains.items():
        others = [other for other in trains if other != name and _same_file(trains[other], train)]
        taken = [column for other in others for column in columns.get(other, ())]
        guess = guess_task(
            name, train, dev=devs.get(name), label=labels.get(name), text=texts.get(name), others=others, taken=taken
        )
        columns[name] = list(guess.spec.label_columns)
        guesses[name] = guess
    return guesses


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


def _rows_name(spec: TaskSpec) -> str:
    """The name of the rows that a task reads: that of the task, or of the group that shares them."""
    return spec.share_rows or spec.name


def _plan_splits(guesses: Iterable[Guess], folder: Path) -> dict[str, Parts]:
    """Plans the split into train and dev of each file without a dev file, by the name of its rows."""
    groups: dict[str, list[TaskSpec]] = {}
    for guess in guesses:
        if not guess.has_dev and guess.spec.text:
            groups.setdefault(_rows_name(guess.spec), []).append(guess.spec)
    return {
        name: plan_split(replace(specs[0], name=name), folder / "data", sharing=specs) for name, specs in groups.items()
    }


def _with_dev(guess: Guess, parts: Parts | None) -> tuple[TaskSpec, list[str]]:
    """The task with a dev file, which may be one that is split off."""
    if guess.has_dev:
        return guess.spec, guess.reasons
    if parts is None:
        reason = "dev: not split off, because the text column is unknown; pass --text, or fill in both fields"
        return guess.spec, [*guess.reasons[:-1], reason]
    unit = "text" if parts.kept_together == "texts" else "pair"
    reason = f"dev: a fifth of the rows, chosen by hash so that no {unit} is in both"
    rows = "row" if parts.dropped == 1 else "rows"
    dropped = [f"{parts.dropped:,} {rows} could not be read: in neither file"] if parts.dropped else []
    # The new files are UTF-8 with commas, whatever the original file was.
    spec = replace(guess.spec, train=str(parts.train), dev=str(parts.dev), encoding=None, delimiter=None)
    return spec, [*guess.reasons[:-1], reason, *dropped]


def _blanks(spec: TaskSpec) -> list[str]:
    optional = ("label",) if spec.kind in KINDS_WITHOUT_LABEL else ()
    return [field for field in FILL_IN if field not in optional and not getattr(spec, field)]


def _task_text(spec: TaskSpec, reasons: list[str], folder: Path, columns: Sequence[str]) -> str:
    content = {
        "kind": spec.kind,
        **({"range": [int(edge) if edge == int(edge) else edge for edge in spec.range]} if spec.range else {}),
        "text": list(spec.text) if len(spec.text) > 1 else "".join(spec.text) or None,
        **({} if spec.options is None else {"options": _plain(spec.options)}),
        **({} if spec.kind in KINDS_WITHOUT_LABEL else {"label": spec.label and _plain(spec.label)}),
        "train": _relative(folder, spec.train) if spec.train else None,
        "dev": _relative(folder, spec.dev) if spec.dev else None,
        **{
            field: value
            for field in ("separator", "encoding", "delimiter", "share_rows")
            if (value := getattr(spec, field))
        },
        **({} if spec.blank_labels == "stop" else {"blank_labels": spec.blank_labels}),
    }
    comments = "".join(f"  # {_one_line(reason)}\n" for reason in reasons)
    body = yaml.safe_dump({spec.name: content}, sort_keys=False, allow_unicode=True, width=1000)
    for field in _blanks(spec):
        known = f" (columns: {_list_columns(columns)})" if field != "dev" else ""
        comment = _one_line(f"# FILL IN: {FILL_IN[field]}{known}")
        body = body.replace(f"\n  {field}: null\n", f"\n  {field}:  {comment}\n")
    return comments + "".join(f"  {line}\n" for line in body.splitlines())


def _plain(columns: str | Sequence[str]) -> str | list[str]:
    """A column, or several as a list, which YAML writes without a tag."""
    return columns if isinstance(columns, str) else list(columns)


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
