"""Makes the paths in a recipe absolute."""

import importlib.util
import os
import re
from dataclasses import replace
from pathlib import Path

from polytask.recipe.records import Recipe, teacher_runs
from polytask.types import UserError


def with_absolute_files(recipe: Recipe, where: str, folder: Path) -> Recipe:
    """The recipe with absolute paths, so that the run's copy of it can be used from any folder."""
    base = folder / _expand(recipe.data, f"{where}: data") if recipe.data is not None else folder
    tasks = {}
    for name, task in recipe.tasks.items():
        field = f"{where}: tasks.{name}"
        tasks[name] = replace(
            task,
            train=None if task.train is None else _absolute(task.train, base, f"{field}.train"),
            dev=_absolute(task.dev, base, f"{field}.dev"),
            test=None if task.test is None else _absolute(task.test, base, f"{field}.test"),
            unlabelled=None if task.unlabelled is None else _absolute(task.unlabelled, base, f"{field}.unlabelled"),
            metrics=tuple(locate_function(reference, folder) for reference in task.metrics),
        )
    encoder = recipe.encoder
    if isinstance(encoder, str):
        encoder = _expand(encoder, f"{where}: encoder")
        if os.path.isdir(folder / encoder) and encoder != "minilm":
            encoder = str((folder / encoder).resolve())
    teachers: dict[str, tuple[str, ...]] = {}
    for field, name, run in teacher_runs(recipe):
        path = os.path.abspath(folder / os.path.expanduser(_expand(run, f"{where}: {field}")))
        teachers[name] = (*teachers.get(name, ()), path)
    plugins = tuple(
        os.path.abspath(folder / os.path.expanduser(_expand(file, f"{where}: plugins"))) for file in recipe.plugins
    )
    return replace(recipe, tasks=tasks, data=None, encoder=encoder, teachers=teachers, plugins=plugins)


def locate_function(reference: str, folder: Path) -> str:
    """`module:function` with the path of the module's file in place of the module.

    The file is looked for in the recipe's folder and, if no such module is installed, in the current folder.
    """
    module, _, name = reference.rpartition(":")
    if not module or not module.partition(".")[0]:
        return reference  # an error later, with the field's name
    file = Path(os.path.expanduser(module) if module.endswith(".py") else f"{module.replace('.', '/')}.py")
    installed = not module.endswith(".py") and importlib.util.find_spec(module.partition(".")[0]) is not None
    for candidate in (folder,) if installed else (folder, Path.cwd()):
        if (candidate / file).is_file():
            return f"{os.path.abspath(candidate / file)}:{name}"
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
                f"{where}: the environment variable {name} is not set; set it (export {name}=DIR) or write the folder"
            )
        return os.environ[name]

    return re.sub(r"\$\{(\w+)\}", value, text)
