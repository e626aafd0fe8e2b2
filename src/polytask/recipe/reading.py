"""Reads and writes recipe files. Strict: an unknown field or a wrong value is an error that names the field.

The methods that a recipe names are checked later, by `build.py`.
"""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from polytask.disk.atomic import write_atomically
from polytask.disk.json_files import read_text
from polytask.disk.records import convert, mapping
from polytask.recipe.checks import check_blanks, check_recipe
from polytask.recipe.earlier import is_of_run, with_earlier_values
from polytask.recipe.paths import locate_function, with_absolute_files
from polytask.recipe.records import Recipe, check_task_name, recipe_to_mapping
from polytask.recipe.task_classes import DATA_FIELDS, needs_files
from polytask.recipe.yaml_files import load_yaml
from polytask.settings import MethodChoice
from polytask.types import KINDS_WITHOUT_LABEL, UserError, unknown


def read_recipe(path: str | Path, settings: Iterable[str] = ()) -> Recipe:
    """Reads a recipe from a YAML file, applies `a.b=value` settings, and makes its paths absolute."""
    path = Path(path)
    return recipe_from(_whole_content(path), settings, where=str(path), folder=path.resolve().parent)


def _whole_content(path: Path) -> Any:
    """The content of a recipe file; that of a run has all fields that the run was trained with."""
    content = read_content(path)
    return with_earlier_values(content) if is_of_run(path) else content


def read_content(path: Path, what: str = "recipe", over: tuple[Path, ...] = ()) -> Any:
    """The content of a recipe file, merged over the recipe that its `base:` names, if there is one."""
    content = load_yaml(read_text(path, what), str(path))
    if not isinstance(content, Mapping) or "base" not in content:
        return content
    base = content["base"]
    if not isinstance(base, str) or "\0" in base:
        raise UserError(f"{path}: base: must be a recipe file, found {base!r}")
    base_path, seen = path.parent / base, (*over, path.resolve())
    if base_path.resolve() in seen:
        raise UserError(f"{path}: base: {base} is itself based on this recipe")
    if os.path.exists(base_path) and not os.path.isfile(base_path):  # a pipe would block, a device may never end
        raise UserError(f"{path}: base: {base} is not a regular file")
    base_content = read_content(base_path, f"base of {path}", seen)
    if not isinstance(base_content, Mapping):
        raise UserError(
            f"{base_path}: a recipe must be a mapping with the field `tasks`, found {type(base_content).__name__}"
        )
    own = {key: value for key, value in content.items() if key != "base"}
    return _merge(own, _with_absolute_paths(base_content, base_path.resolve().parent), str(path))


def portable_content(path: str | Path, settings: Iterable[str] = ()) -> dict[str, Any]:
    """The content of a recipe file with `a.b=value` settings, which can be used from any folder: paths are absolute."""
    path = Path(path)
    content = _whole_content(path)
    if not isinstance(content, Mapping):
        raise UserError(f"{path}: a recipe must be a mapping with the field `tasks`, found {type(content).__name__}")
    for setting in settings:
        content = with_setting(content, setting)
    return _with_absolute_paths(content, path.resolve().parent)


def _merge(own: Mapping[str, Any], base: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Merges `train` and each task field by field, and replaces other fields; a task that is null is removed."""
    merged = {**base, **own}
    if "train" in own and "train" in base:
        merged["train"] = {**mapping(base["train"], where), **mapping(own["train"], f"{where}: train")}
    if "tasks" in own and "tasks" in base:
        tasks = dict(mapping(base["tasks"], where))
        for name, task in mapping(own["tasks"], f"{where}: tasks").items():
            tasks[name] = task and {**(tasks.get(name) or {}), **mapping(task, f"{where}: tasks.{name}")}
        merged["tasks"] = {name: task for name, task in tasks.items() if task is not None}
    return merged


def _with_absolute_paths(base: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """A base recipe that can be used from any folder: its relative paths are relative to its own."""
    content = {"data": ".", **base}
    if isinstance(content["data"], str) and not content["data"].startswith(("$", "~")):
        content["data"] = str(folder / content["data"])
    encoder = content.get("encoder")
    if isinstance(encoder, str) and encoder != "minilm" and os.path.isdir(folder / encoder):
        content["encoder"] = str(folder / content["encoder"])
    if isinstance(content.get("tasks"), Mapping):
        content["tasks"] = {name: _with_located_metrics(task, folder) for name, task in content["tasks"].items()}
    if isinstance(content.get("plugins"), list | str):
        plugins = content["plugins"] if isinstance(content["plugins"], list) else [content["plugins"]]
        content["plugins"] = [_below(folder, file) for file in plugins]
    if isinstance(content.get("teachers"), Mapping):
        content["teachers"] = {
            task: [_below(folder, run) for run in runs] if isinstance(runs, list) else _below(folder, runs)
            for task, runs in content["teachers"].items()
        }
    return content


def _below(folder: Path, path: Any) -> str:
    return path if isinstance(path, str) and path.startswith(("$", "~")) else str(folder / str(path))


def _with_located_metrics(task: Any, folder: Path) -> Any:
    if not isinstance(task, Mapping) or not isinstance(task.get("metrics"), list):
        return task
    return {**task, "metrics": [locate_function(str(reference), folder) for reference in task["metrics"]]}


def recipe_from(
    content: Any, settings: Iterable[str] = (), where: str = "recipe", folder: Path | None = None
) -> Recipe:
    """Reads a recipe from a mapping. Paths are relative to `folder` (default: the current one).

    A task can be a mapping or an object such as `Classes`. Its data can be in memory; it is then written to a file in
    the cache, which the recipe names.
    """
    if not isinstance(content, Mapping):
        raise UserError(f"{where}: a recipe must be a mapping with the field `tasks`, found {type(content).__name__}")
    content = dict(content)
    tasks = content.get("tasks")
    if isinstance(tasks, Mapping) and any(map(needs_files, tasks.values())):
        from polytask.recipe.in_memory import with_files  # imports pyarrow and tokenizers  # noqa: PLC0415

        content["tasks"] = with_files(tasks, where)
    for setting in settings:
        content = with_setting(content, setting)
    tasks = content.get("tasks")
    if not isinstance(tasks, Mapping) or not tasks:
        raise UserError(
            f"{where}: tasks: must have at least one task, as in `tasks: {{NAME: {{kind: ..., train: ...}}}}`; found "
            f"{' '.join(repr(tasks).split()):.80}"
        )
    named = {str(name): _named(str(name), mapping(task, f"{where}: tasks.{name}")) for name, task in tasks.items()}
    for name in named:
        check_task_name(name, f"{where}: tasks.{name}")
    check_blanks(named, where)
    # `optimizer: {lr: 3e-5}` is the default optimizer with another learning rate.
    for kind in ("adapter", "sampler", "policy", "optimizer"):
        if isinstance(content.get(kind), Mapping):
            content[kind] = {"name": _default_method(kind), **content[kind]}
    recipe: Recipe = convert({**content, "tasks": named}, Recipe, where)
    check_recipe(recipe, where)
    return with_absolute_files(recipe, where, folder or Path.cwd())


def _named(name: str, task: Mapping[str, Any]) -> dict[str, Any]:
    label = {"label": None} if task.get("kind") in KINDS_WITHOUT_LABEL else {}
    train = {"train": None} if task.get("trained") is False else {}
    return {"name": name, **label, **train, **task}


def _default_method(kind: str) -> str:
    default: MethodChoice = getattr(Recipe(tasks={}), kind)
    return default.name


def with_setting(content: Mapping[str, Any], setting: str) -> dict[str, Any]:
    """A copy of the recipe's mapping with the setting `a.b.c=value` applied; the value is read as YAML."""
    key, equals, text = setting.partition("=")
    if not equals or not key:
        raise UserError(f"--set {setting}: must be FIELD=VALUE, as in train.epochs=5")
    return with_value(content, key.split("."), load_yaml(text, f"--set {setting}"))


def with_value(content: Mapping[str, Any], keys: list[str], value: Any) -> dict[str, Any]:
    """A copy of the recipe's mapping with one field set; `keys` is the path to the field."""
    tasks = content.get("tasks")
    if keys[0] == "tasks" and len(keys) > 2 and isinstance(tasks, Mapping) and keys[1] not in map(str, tasks):
        raise UserError(unknown(".".join(keys), keys[1], map(str, tasks), "task"))  # it would add an incomplete task
    return _with_value(content, keys, value)


def _with_value(content: Mapping[str, Any], keys: list[str], value: Any) -> dict[str, Any]:
    if len(keys) == 1:
        return {**content, keys[0]: value}
    inner = content.get(keys[0], {})
    if isinstance(inner, str):  # the short form of a method, `optimizer: adamw`
        inner = {"name": inner}
    return {**content, keys[0]: _with_value(inner if isinstance(inner, Mapping) else {}, keys[1:], value)}


def write_recipe(recipe: Recipe, path: Path) -> None:
    """Writes the recipe with all defaults as YAML, which `read_recipe` reads back unchanged.

    Files in the recipe's folder have relative names, so that the folder can be moved.
    """
    content, folder = recipe_to_mapping(recipe), os.path.join(os.path.abspath(path.parent), "")
    for task in content["tasks"].values():
        inside = {field: task[field] for field in DATA_FIELDS if str(task[field]).startswith(folder)}
        task |= {field: source.removeprefix(folder) for field, source in inside.items()}
    write_atomically(path, yaml.safe_dump(content, sort_keys=False, allow_unicode=True))
