"""Tasks for a finished run: the old run and a recipe with new tasks -> the recipe of the new run. Reads no data."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from polytask.build import complete
from polytask.disk.hashing import sha256
from polytask.disk.records import convert, mapping
from polytask.recipe.reading import read_content, read_recipe, recipe_from, with_setting
from polytask.recipe.records import Recipe, recipe_to_mapping
from polytask.runs.bundle import Bundle, load_bundle, no_model, read_split_for
from polytask.runs.folder import ModelFolder, RunFolder
from polytask.runs.prepare import use_code
from polytask.settings import TaskSpec
from polytask.tasks.task import Split
from polytask.types import UserError

SAME = ("encoder", "max_length", "truncate", "word_tags")
"""The fields of a recipe that are the same for old and new tasks."""


@dataclass(frozen=True)
class OldRun:
    """A finished run that tasks are added to."""

    folder: Path
    recipe: Recipe
    bundle: Bundle

    @property
    def tasks(self) -> tuple[str, ...]:
        return tuple(self.bundle.specs)

    @property
    def model(self) -> ModelFolder:
        return RunFolder(self.folder).model

    @cached_property
    def origin(self) -> dict[str, Any]:
        """The starting weights of the new run, for environment.json."""
        hashes = " ".join(sha256(file) for file in (self.model.encoder, self.model.parts))
        return {"added_to": str(self.folder), "added_to_sha256": hashes}


def read_old_run(run: Path, trust_plugins: bool = False) -> OldRun:
    folder = RunFolder(run)
    if not run.is_dir():
        raise UserError(f"{run}: there is no such run")
    if not folder.recipe.is_file():
        raise UserError(f"{run}: not a run: it has no {folder.recipe.name}")
    if not folder.model.path.is_dir():
        raise no_model(run)
    bundle = load_bundle(folder.model.path, trust_plugins)
    recipe = read_recipe(folder.recipe)
    if recipe.tasks.keys() != bundle.specs.keys():
        raise UserError(
            f"{run}: {folder.recipe.name} has the tasks {', '.join(recipe.tasks)}, but model/{folder.model.tasks.name} "
            f"has {', '.join(bundle.specs)}: they belong to different runs"
        )
    return OldRun(run.resolve(), recipe, bundle)


def join_recipes(
    old: OldRun, recipe: str | Path | Mapping[str, Any], settings: Iterable[str] = (), trust_plugins: bool = False
) -> Recipe:
    """The recipe of the new run: the old tasks, then the new ones, on the old run's encoder and adapter.

    It has the plug-ins of both.
    """
    if old.bundle.model.budget()["adapter_shared"]:
        raise UserError(
            f"{old.folder}: the tasks share parts of the adapter {old.bundle.adapter.name}, so no task can be added to "
            "them"
        )
    where, folder = "recipe", None
    content = recipe
    if not isinstance(recipe, Mapping):
        where, folder = str(recipe), Path(recipe).resolve().parent
        content = read_content(Path(recipe))
    content = dict(mapping(content, where))
    for setting in settings:
        content = with_setting(content, setting)
    new = _new_tasks(content, old, where)
    add = mapping(content.get("add") or {}, f"{where}: add")
    if add.get("run") not in (None, str(old.folder)):
        raise UserError(f"{where}: add.run: must be {old.folder}, found {add['run']!r}; leave the field out")
    for field in ("task", "new_class", "rehearse"):
        if add.get(field) is not None:
            raise UserError(f"{where}: add.{field}: is for polytask add-class only; leave the field out")
    plain = recipe_to_mapping(old.recipe)
    whole = recipe_from(
        {
            "name": "-".join([old.recipe.name, *map(str, new)]),
            **{field: plain[field] for field in SAME},
            # The adapter as the model was saved with it: defaults may have changed since then.
            "adapter": {"name": old.bundle.adapter.name, **old.bundle.adapter.options},
            **content,
            "tasks": {**old_tasks(old, plain), **new},
            "plugins": plugins_of_both(content, old, where),
            "add": {**add, "run": str(old.folder)},
        },
        where=where,
        folder=folder,
    )
    if not any(whole.tasks[name].trained for name in map(str, new)):
        raise UserError(f"{where}: tasks: at least one new task must be trained, found `trained: false` for all")
    use_code(whole, trust_plugins)
    check_same_model(whole, old, where)
    return _frozen(whole, old, where) if whole.add and whole.add.guarantee == "frozen" else whole


def _new_tasks(content: Mapping[str, Any], old: OldRun, where: str) -> Mapping[str, Any]:
    new = content.get("tasks")
    if not isinstance(new, Mapping) or not new:
        raise UserError(
            f"{where}: tasks: at least one new task is needed, as `tasks: {{NAME: {{kind: ..., train: ...}}}}`"
        )
    for name in map(str, new):
        if name in old.tasks:
            raise UserError(f"{where}: tasks.{name}: {old.folder} already has a task of this name; use another name")
    return new


def plugins_of_both(content: Mapping[str, Any], old: OldRun, where: str) -> tuple[str, ...]:
    new: tuple[str, ...] = convert(content.get("plugins") or (), tuple[str, ...], f"{where}: plugins")
    return (*old.recipe.plugins, *new)


def old_tasks(old: OldRun, plain: Mapping[str, Any]) -> dict[str, Any]:
    """The old tasks as the old recipe has them, with the heads that the model was saved with.

    Their rows without labels are left out, because the teachers of the old recipe are not used.
    """
    heads = {name: spec.head for name, spec in old.bundle.specs.items()}
    return {
        name: {
            **plain["tasks"][name],
            "unlabelled": None,
            "head": None if head is None else {"name": head.name, **head.options},
        }
        for name, head in heads.items()
    }


def read_old_split(old: OldRun, spec: TaskSpec, split: str, why: str = "", remedy: str = "") -> Split:
    """Reads a file of an old task. `why` says what needs it, `remedy` what to do without it."""
    try:
        return read_split_for(old.bundle, spec, getattr(spec, split), split)
    except UserError as error:
        message = f"{old.folder}: its task {spec.name} needs its {split} file{why}: {error}{remedy}"
        raise UserError(message) from None


def check_same_model(recipe: Recipe, old: OldRun, where: str) -> None:
    for field in SAME:
        own, theirs = getattr(recipe, field), getattr(old.recipe, field)
        if own != theirs:
            raise UserError(f"{where}: {field}: {old.folder} has {theirs!r}, found {own!r}; leave the field out")
    for name, spec in recipe.tasks.items():
        if spec.tags and old.bundle.word_tags is None:
            raise UserError(f"{where}: tasks.{name}.tags: the model of {old.folder} has no word tags; leave it out")
    own, theirs = (complete(choice, f"{where}: adapter") for choice in (recipe.adapter, old.bundle.adapter))
    if own != theirs:
        raise UserError(
            f"{where}: adapter: the tasks of {old.folder} have {_shown(theirs.name, theirs.options)}, found "
            f"{_shown(own.name, own.options)}: all tasks of a model have the same adapter; leave the field out"
        )


def _shown(name: str, options: Mapping[str, Any]) -> str:
    return f"{name} {json.dumps(options)}" if options else name


def _frozen(recipe: Recipe, old: OldRun, where: str) -> Recipe:
    """The recipe of a run that must not change the encoder and the old tasks."""
    why = "(add.guarantee: frozen)"
    if recipe.train.norms:
        raise UserError(f"{where}: train.norms: the encoder's layer norms must not change {why}")
    if recipe.train.select.partition(".")[0] in old.tasks:
        raise UserError(f"{where}: train.select: the score of an old task does not change; choose a new task {why}")
    for name in recipe.teachers:
        if name in old.tasks:
            raise UserError(f"{where}: teachers.{name}: an old task does not learn {why}")
    parts = "adapters" if recipe.train.parts == "all" else recipe.train.parts
    return replace(recipe, train=replace(recipe.train, parts=parts))
