"""Recipe file <-> typed records. Strict: an unknown key, a wrong type or a bad value is an error that names the field.

Knows the shape of a recipe and nothing of the methods it names: `build.py` checks those.
"""

import importlib.util
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from polytask.types import AddSettings, MaxLength, Rate, Swap, TaskSpec, TrainSettings, UserError
from polytask.values import convert, load_yaml, mapping, read_text, unknown
from polytask.whole import write_whole

TASK_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
DEVICE = re.compile(r"auto|cpu|cuda(:[0-9]{1,3})?")
NEEDED = {
    "kind": "classes, yes_no, score or text",
    "text": "the name of the column with the text, or of two columns",
    "label": "the name of the column with the labels",
    "train": "the file with the training rows",
    "dev": "the file with the dev rows",
}
"""The fields that every task has, and what belongs there."""
CHOICES = ("mean", "last")
"""What `train.select` can be beside a task."""


@dataclass(frozen=True)
class Recipe:
    """One whole run: tasks, encoder, the six swaps, and how to train."""

    tasks: Mapping[str, TaskSpec]
    """Task name -> what it is."""
    name: str = "run"
    """Names the run's folder: runs/NAME."""
    encoder: str | Mapping[str, Any] = "minilm"
    """minilm, a folder, ID or ID@REVISION of the hub, or {layers: 2, hidden: 128, ...} for an untrained one."""
    max_length: MaxLength = 128
    """Longest sequence in tokens; longer texts lose their end."""
    dropout: Rate | None = None
    """Of hidden states; left out: as the encoder was trained."""
    attention_dropout: Rate | None = None
    """Of attention weights; left out: as the encoder was trained. Above 128 tokens, 0 is faster on CUDA."""
    data: str | None = None
    """Folder the tasks' files are in; left out: the recipe's own folder. May be ${POLYTASK_DATA}."""
    seed: int = 0
    """Every random draw of the run comes from it: same seed, same machine, same weights."""
    adapter: Swap = field(default_factory=lambda: Swap("none"))
    """Task-specific parts inside the trunk."""
    regularizers: tuple[Swap, ...] = ()
    """Penalties added to the loss, any number."""
    sampler: Swap = field(default_factory=lambda: Swap("proportional"))
    """Which tasks enter a step."""
    policy: Swap = field(default_factory=lambda: Swap("sum"))
    """How the tasks' losses become one update."""
    optimizer: Swap = field(default_factory=lambda: Swap("adamw"))
    """Its `lr` and `weight_decay` are the trunk's."""
    teachers: Mapping[str, str] = field(default_factory=dict)
    """Task -> the folder of a finished run that knows it: its outputs are learned beside the labels."""
    train: TrainSettings = field(default_factory=TrainSettings)
    """How long, how fast and on what: below."""
    add: AddSettings | None = None
    """For `polytask add-task RUN RECIPE` only: how the tasks join a run that has finished: below."""


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
    return {**task, "metrics": [_located(str(reference), folder) for reference in task["metrics"]]}


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
    _check_blanks(named, where)
    # `optimizer: {lr: 3e-5}` is the default optimizer with another rate.
    for default in ("adapter", "sampler", "policy", "optimizer"):
        if isinstance(content.get(default), Mapping):
            content[default] = {"name": _default_name(default), **content[default]}
    recipe: Recipe = convert({**content, "tasks": named}, Recipe, where)
    _check(recipe, where)
    return _with_files(recipe, where, folder or Path.cwd())


def _check_blanks(tasks: Mapping[str, Mapping[str, Any]], where: str) -> None:
    """Fields that `polytask init` left blank, all of them at once."""
    blank = [
        f"{where}: tasks.{name}.{field}: a value is needed, found nothing; fill in {what}"
        for name, task in tasks.items()
        for field, what in NEEDED.items()
        if field in task and task[field] is None and (field, task.get("kind")) != ("label", "text")
    ]
    if blank:
        raise UserError("\n".join(blank))


def _named(name: str, task: Mapping[str, Any]) -> dict[str, Any]:
    return {"name": name, **({"label": None} if task.get("kind") == "text" else {}), **task}


def _default_name(swap: str) -> str:
    default: Swap = getattr(Recipe(tasks={}), swap)
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
    write_whole(path, yaml.safe_dump(recipe_to_mapping(recipe), sort_keys=False, allow_unicode=True))


def recipe_to_mapping(recipe: Recipe) -> dict[str, Any]:
    content: dict[str, Any] = _plain(asdict(recipe))
    for task in content["tasks"].values():
        del task["name"]
    return content


def flat_fields(recipe: Recipe) -> dict[str, Any]:
    """A recipe's fields by dotted name; a method is its name, and its options by their own."""
    return dict(_flat(recipe_to_mapping(recipe), ""))


def _flat(content: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in content.items():
        if not isinstance(value, Mapping):
            yield f"{prefix}{key}", value
        elif "name" in value:
            yield f"{prefix}{key}", value["name"]
            yield from _flat({k: v for k, v in value.items() if k != "name"}, f"{prefix}{key}.")
        else:
            yield from _flat(value, f"{prefix}{key}.")


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        if set(value) == {"name", "options"}:  # a Swap
            return {"name": value["name"], **_plain(value["options"])}
        return {key: _plain(inner) for key, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, tuple | list) else value


# --- checks a type cannot make ----------------------------------------------------------------------------------------
def _check(recipe: Recipe, where: str) -> None:
    t = recipe.train
    parts = Path(recipe.name).parts
    if not parts or not recipe.name.isprintable() or {"..", "/"} & set(parts):
        raise UserError(f"{where}: name: the name of a folder inside runs/ is needed, found {recipe.name!r}")
    if not DEVICE.fullmatch(t.device):
        raise UserError(f"{where}: train.device: must be auto, cpu, cuda or cuda:NUMBER, found {t.device!r}")
    names = [regularizer.name for regularizer in recipe.regularizers]
    if len(set(names)) < len(names):
        raise UserError(f"{where}: regularizers: each can be there once, found {', '.join(names)}")
    for taught in recipe.teachers:
        if taught not in recipe.tasks:
            raise UserError(unknown(f"{where}: teachers", taught, recipe.tasks, "task"))
        if recipe.tasks[taught].kind == "text":
            raise UserError(f"{where}: teachers.{taught}: a task of plain text has no answers to be taught")
    if recipe.add is not None:
        _check_add(recipe.add, f"{where}: add")
    for name, task in recipe.tasks.items():
        _check_task(task, f"{where}: tasks.{name}")
    chosen = t.select.partition(".")[0]
    if t.select not in CHOICES and chosen not in recipe.tasks:
        raise UserError(unknown(f"{where}: train.select", chosen, [*CHOICES, *recipe.tasks], "task"))
    if t.select == "last" and t.patience is not None:
        raise UserError(f"{where}: train.patience: select: last has no best evaluation to wait for, found {t.patience}")


def _check_task(task: TaskSpec, where: str) -> None:
    if len(task.text) not in (1, 2):
        raise UserError(f"{where}.text: one column, or two for a pair, found {len(task.text)}")
    if task.kind == "text":
        _check_plain_text(task, where)
    if task.kind == "score":
        if task.range is None:
            raise UserError(f"{where}.range: a score needs its lowest and highest value, as `range: [0, 5]`")
        if not task.range[0] < task.range[1]:
            raise UserError(f"{where}.range: the first value must be the lower one, found {list(task.range)}")
    if task.classes is not None and (task.kind != "classes" or len(set(task.classes)) < max(2, len(task.classes))):
        raise UserError(
            f"{where}.classes: two or more different names, for kind classes only, found {list(task.classes)}"
        )
    for reference in task.metrics:
        module, _, function = reference.rpartition(":")
        if not module or not function.isidentifier():
            raise UserError(f"{where}.metrics: a function is given as module:function, found {reference!r}")


def _check_add(add: AddSettings, where: str) -> None:
    if add.distill and add.guarantee == "frozen":
        raise UserError(f"{where}.distill: needs `guarantee: measured`: a frozen trunk cannot forget")


def _check_plain_text(task: TaskSpec, where: str) -> None:
    if task.is_pair:
        raise UserError(f"{where}.text: kind text takes one column, found {len(task.text)}")
    for name in ("label", "range", "loss", "metrics"):
        if (value := getattr(task, name)) not in (None, ()):
            raise UserError(f"{where}.{name}: kind text has no labels, found {value!r}")


# --- files ------------------------------------------------------------------------------------------------------------
def _with_files(recipe: Recipe, where: str, folder: Path) -> Recipe:
    """Every file of the recipe as an absolute path, so that the run's copy can be used from anywhere."""
    base = folder / _expand(recipe.data, f"{where}: data") if recipe.data is not None else folder
    tasks = {}
    for name, task in recipe.tasks.items():
        place = f"{where}: tasks.{name}"
        tasks[name] = replace(
            task,
            train=_absolute(task.train, base, f"{place}.train"),
            dev=_absolute(task.dev, base, f"{place}.dev"),
            test=None if task.test is None else _absolute(task.test, base, f"{place}.test"),
            metrics=tuple(_located(reference, folder) for reference in task.metrics),
        )
    encoder = recipe.encoder
    if isinstance(encoder, str):
        encoder = _expand(encoder, f"{where}: encoder")
        if os.path.isdir(folder / encoder) and encoder != "minilm":
            encoder = str((folder / encoder).resolve())
    teachers = {
        name: os.path.abspath(folder / os.path.expanduser(_expand(run, f"{where}: teachers.{name}")))
        for name, run in recipe.teachers.items()
    }
    return replace(recipe, tasks=tasks, data=None, encoder=encoder, teachers=teachers)


def _located(reference: str, folder: Path) -> str:
    """`module:function` with the module's file, where that is beside the recipe, or (not installed) in this folder."""
    module, _, name = reference.rpartition(":")
    if not module or not module.partition(".")[0]:
        return reference  # refused later, with the field's name
    file = Path(os.path.expanduser(module) if module.endswith(".py") else f"{module.replace('.', '/')}.py")
    installed = not module.endswith(".py") and importlib.util.find_spec(module.partition(".")[0]) is not None
    for place in (folder,) if installed else (folder, Path.cwd()):
        if (place / file).is_file():
            return f"{os.path.abspath(place / file)}:{name}"
    return reference


def _absolute(source: str, base: Path, where: str) -> str:
    if source.startswith(("sample:", "hub:")):
        return source
    return os.path.abspath(base / os.path.expanduser(_expand(source, where)))


def _expand(text: str, where: str) -> str:
    def value(match: re.Match[str]) -> str:
        name = match.group(1)
        if name not in os.environ:
            raise UserError(
                f"{where}: the environment has no {name}; set it (export {name}=DIR) or give the folder itself"
            )
        return os.environ[name]

    return re.sub(r"\$\{(\w+)\}", value, text)
