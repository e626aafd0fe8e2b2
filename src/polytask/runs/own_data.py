"""The data of a run that was in memory: its files are copied from the cache into the run's folder.

So the folder holds all that is needed to resume the run, to score it again and to see what it was trained on.
"""

import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from polytask.disk.atomic import atomic_file
from polytask.disk.writable import make_folder
from polytask.recipe.in_memory import memory_folder
from polytask.recipe.records import Recipe
from polytask.recipe.task_classes import DATA_FIELDS
from polytask.runs.folder import RunFolder


def with_own_data(recipe: Recipe, folder: RunFolder) -> Recipe:
    """The recipe as the run's folder has it: data that was in memory is in that folder, not in the cache."""
    return _moved(recipe, memory_folder(), folder.data)


def with_named_data(recipe: Recipe, folder: RunFolder) -> Recipe:
    """The recipe of a run without the folder of its own data, so that runs on the same data have equal recipes."""
    return _moved(recipe, folder.data, None)


def copy_data(recipe: Recipe, folder: RunFolder) -> None:
    """Copies the data that was in memory into the run's folder. The names contain the hash of the content."""
    for _, _, path in _files_in(recipe, memory_folder()):
        target = folder.data / path.name
        if not target.exists():
            make_folder(folder.data)
            with atomic_file(target) as unfinished:
                shutil.copyfile(path, unfinished)


def _moved(recipe: Recipe, source: Path, target: Path | None) -> Recipe:
    """The recipe with files of the source folder in the target folder; without one, only with their names."""
    tasks = dict(recipe.tasks)
    for name, field, path in _files_in(recipe, source):
        own: dict[str, Any] = {field: path.name if target is None else os.path.abspath(target / path.name)}
        tasks[name] = replace(tasks[name], **own)
    return replace(recipe, tasks=tasks)


def _files_in(recipe: Recipe, folder: Path) -> Iterator[tuple[str, str, Path]]:
    """Yields task, field and path of the tasks' files in a folder."""
    for name, task in recipe.tasks.items():
        for field in DATA_FIELDS:
            source: str | None = getattr(task, field)
            if source is not None and Path(source).parent == Path(os.path.abspath(folder)):
                yield name, field, Path(source)
