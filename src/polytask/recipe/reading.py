"""Recipe file <-> typed records. Strict: an unknown key, a wrong type or a bad value is an error that names the field.

Knows the shape of a recipe and nothing of the methods it names: `build.py` checks those.
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
from polytask.recipe.paths import located, with_absolute_files
from polytask.recipe.records import CHOICES, TASK_NAME, Recipe, recipe_to_mapping
from polytask.recipe.yaml_files import load_yaml
from polytask.types import MethodChoice, UserError, unknown


def read_recipe(path: str | Path, settings: Iterable[str] = ()) -> Recipe:
    """The recipe in a YAML file, with `a.b=value` settings put over it and files made absolute."""
    path = Path(path)
    return recipe_from(read_content(path), settings, where=str(path), folder=path.resolve().parent)


def read_content(path: Path, what: str = "recipe", over: tuple[Path, ...] = ()) -> Any:
    """A recipe file's YAML, put over the recipe that its `base:` names, if it names one."""
    content = load_yaml(read_text(path, what), str(path))
    if not isinstance(content, Mapping) or "base" not in content:
        return content
    base = content["base"]
    if not isinstance(base, str) or "\0" in base:
        raise UserError(f"{path}: base: a recipe file is needed, found {base!r}")
    below, seen = path.parent / base, (*over, path.resolve())
    if below.resolve() in seen:
        raise UserError(f"{path}: base: {base} is itself based on this recipe")
    if os.path.exists(below) and not os.path.isfile(below):  # a pipe would block, a device may have no end
        raise UserError(f"{path}: base: {base} is not a regular file")
    found = read_content(below, f"base of {path}", seen)
    if not isinstance(found, Mapping):
        raise UserError(f"{below}: a recipe is a mapping with a `tasks:` part, found {type(found).__name__}")
    own = {key: value for key, value in content.items() if key != "base"}
    return _put_over(own, _from_anywhere(found, below.resolve().parent), str(path))


def _put_over(own: Mapping[str, Any], base: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Fields of `train:` and of each task one by one, everything else whole; a task that is null is left out."""
    both = {**base, **own}
    if "train" in own and "train" in base:
        both["train"] = {**mapping(base["train"], where), **mapping(own["train"], f"{where}: train")}
    if "tasks" in own and "tasks" in base:
        tasks = dict(mapping(base["tasks"], where))
        for name, task in mapping(own["tasks"], f"{where}: tasks").items():
            tasks[name] = task and {**(tasks.get(name) or {}), **mapping(task, f"{where}: tasks.{name}")}
        both["tasks"] = {name: task for name, task in tasks.items() if task is not None}
    return both


def _from_anywhere(content: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """A base recipe whose relative paths, which start from its own folder, can be used from any other."""
    whole = {"data": ".", **content}
    if isinstance(whole["data"], str) and not whole["data"].startswith(("$", "~")):
        whole["data"] = str(folder / whole["data"])
    encoder = whole.get("encoder")
    if isinstance(encoder, str) and encoder != "minilm" and os.path.isdir(folder / encoder):
        whole["encoder"] = str(folder / whole["encoder"])
    if isinstance(whole.get("tasks"), Mapping):
        whole["tasks"] = {name: _own_functions(task, folder) for name, task in whole["tasks"].items()}
    if isinstance(whole.get("teachers"), Mapping):
        whole["teachers"] = {
            task: run if str(run).startswith(("$", "~")) else str(folder / str(run))
            for task, run in whole["teachers"].items()
        }
    return whole


def _own_functions(task: Any, folder: Path) -> Any:
    if not isinstance(task, Mapping) or not isinstance(task.get("metrics"), list):
        return task
    return {**task, "metrics": [located(str(reference), folder) for reference in task["metrics"]]}


def recipe_from(
    content: Any, settings: Iterable[str] = (), where: str = "recipe", folder: Path | None = None
) -> Recipe:
    """The recipe in a mapping as YAML gives it. Relative files are those of `folder` (left out: the current one)."""
    if not isinstance(content, Mapping):
        raise UserError(f"{where}: a recipe is a mapping with a `tasks:` part, found {type(content).__name__}")
    content = dict(content)
    for setting in settings:
        content = with_setting(content, setting)
    tasks = content.get("tasks")
    if not isinstance(tasks, Mapping) or not tasks:
        raise UserError(f"{where}: tasks: at least one task is needed, as `tasks: {{NAME: {{kind: ..., train: ...}}}}`")
    named = {str(name): _named(str(name), mapping(task, f"{where}: tasks.{name}")) for name, task in tasks.items()}
    for name in named:
        if not TASK_NAME.fullmatch(name) or name in CHOICES:
            taken = " or ".join(CHOICES)
            raise UserError(f"{where}: tasks.{name}: a task's name is letters, digits, - and _, up to 64, not {taken}")
    check_blanks(named, where)
    # `optimizer: {lr: 3e-5}` is the default optimizer with another rate.
    for default in ("adapter", "sampler", "policy", "optimizer"):
        if isinstance(content.get(default), Mapping):
            content[default] = {"name": _default_name(default), **content[default]}
    recipe: Recipe = convert({**content, "tasks": named}, Recipe, where)
    check_recipe(recipe, where)
    return with_absolute_files(recipe, where, folder or Path.cwd())


def _named(name: str, task: Mapping[str, Any]) -> dict[str, Any]:
    return {"name": name, **({"label": None} if task.get("kind") == "text" else {}), **task}


def _default_name(swap: str) -> str:
    default: MethodChoice = getattr(Recipe(tasks={}), swap)
    return default.name


def with_setting(content: Mapping[str, Any], setting: str) -> dict[str, Any]:
    """A copy of the recipe's mapping with `a.b.c=value` put in; the value is read as YAML."""
    key, found, text = setting.partition("=")
    if not found or not key:
        raise UserError(f"--set {setting}: expected FIELD=VALUE, as in train.epochs=5")
    return with_value(content, key.split("."), load_yaml(text, f"--set {setting}"))


def with_value(content: Mapping[str, Any], keys: list[str], value: Any) -> dict[str, Any]:
    """A copy of the recipe's mapping with the field at the end of `keys` set."""
    tasks = content.get("tasks")
    if keys[0] == "tasks" and len(keys) > 2 and isinstance(tasks, Mapping) and keys[1] not in map(str, tasks):
        raise UserError(unknown(".".join(keys), keys[1], map(str, tasks), "task"))  # else half a task would be added
    return _with_value(content, keys, value)


def _with_value(content: Mapping[str, Any], keys: list[str], value: Any) -> dict[str, Any]:
    if len(keys) == 1:
        return {**content, keys[0]: value}
    inner = content.get(keys[0], {})
    if isinstance(inner, str):  # a swap in its short form, `optimizer: adamw`
        inner = {"name": inner}
    return {**content, keys[0]: _with_value(inner if isinstance(inner, Mapping) else {}, keys[1:], value)}


def write_recipe(recipe: Recipe, path: Path) -> None:
    """The complete recipe, every default written out, as YAML that `read_recipe` gives back unchanged."""
    write_atomically(path, yaml.safe_dump(recipe_to_mapping(recipe), sort_keys=False, allow_unicode=True))
