"""Users' own metrics: functions that a recipe names as `module:function`, or by the name that a plug-in registers.

Imports them; knows no task's data. A file runs only if the user has trusted it, like a plug-in; modules of Python and
of installed packages need no trust. A module that is a file next to the recipe is written into the run's recipe as an
absolute path.
"""

import hashlib
import importlib
import importlib.machinery
import importlib.util
import site
import sys
import sysconfig
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from polytask.evaluation.metrics import Array, Floats, Metric, all_metrics_for, chosen_metric
from polytask.methods import METRIC, find_method
from polytask.plugins.files import load_module
from polytask.plugins.trust import check_trusted, read_plugin, trust_plugin
from polytask.settings import TaskSpec
from polytask.types import LabelSpace, UserError


def own_metrics(spec: TaskSpec) -> tuple[Metric, ...]:
    """Loads the functions under a task's `metrics:`. They take class numbers, 0 / 1, or scores in the task's range."""
    metrics: list[Metric] = []
    taken = {metric.name for metric in all_metrics_for(spec.kind)}
    for reference in spec.metrics:
        where = f"recipe: tasks.{spec.name}.metrics: {reference}"
        function = _load(reference, where)
        name = reference.rpartition(":")[2]
        if name in taken:
            raise UserError(f"{where}: a metric called {name} already exists; give the function another name")
        taken.add(name)
        greater_is_better = bool(getattr(function, "greater_is_better", True))
        metrics.append(Metric(name, _checked(function, where), greater_is_better, (spec.kind,), own=True))
    return tuple(metrics)


def primary_of(spec: TaskSpec, labels: LabelSpace | None = None) -> Metric:
    """Returns the metric that judges a task: its `metric:`, or the default of its kind.

    The default for tags of words depends on their scheme, which `labels` has.
    """
    scheme = None if labels is None else labels.scheme
    return chosen_metric(spec.metric, spec.kind, f"recipe: tasks.{spec.name}.metric", own_metrics(spec), scheme)


def _load(reference: str, where: str) -> Callable[..., Any]:
    module_name, _, name = reference.rpartition(":")
    if not module_name:
        try:
            registered: Callable[..., Any] = find_method(METRIC, name, where)
            return registered
        except UserError as error:
            raise UserError(f"{error}. A function that no plug-in registers is named as module:function") from None
    try:
        module = _from_file(Path(module_name)) if module_name.endswith(".py") else _from_module(module_name)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
    except (Exception, SystemExit) as error:  # the user's module may raise anything
        raise UserError(f"{where}: the module cannot be imported: {type(error).__name__}: {error}") from error
    function = getattr(module, name, None)
    if not callable(function):
        raise UserError(f"{where}: {module_name} has no function {name}")
    checked: Callable[..., Any] = function
    return checked


def trust_functions(specs: Iterable[TaskSpec]) -> None:
    """Remembers that the files of the tasks' functions may run, as `--trust-plugins` does."""
    for file in function_files(specs):
        trust_plugin(file)


def function_files(specs: Iterable[TaskSpec]) -> list[Path]:
    """Returns the files of the tasks' functions that the user must trust, without those that do not exist."""
    return [file for module in _modules(specs) for file in _files_to_trust(module) if file.is_file()]


def function_versions(specs: Iterable[TaskSpec]) -> dict[str, str]:
    """Returns the SHA-256 of the files of the tasks' functions, by the name of the file or module.

    Modules of Python and of installed packages are left out.
    """
    versions: dict[str, str] = {}
    for module in _modules(specs):
        name = f"metrics {Path(module).name}"  # the same in every folder
        for file in _files_to_trust(module):
            content = versions.get(name, "").encode() + read_plugin(file)  # two folders may have a file of this name
            versions[name] = hashlib.sha256(content).hexdigest()
    return versions


def _modules(specs: Iterable[TaskSpec]) -> list[str]:
    """Returns the modules and files of the tasks' functions."""
    return sorted({reference.rpartition(":")[0] for spec in specs for reference in spec.metrics} - {""})


def _files_to_trust(module: str) -> list[Path]:
    """Returns the files that run when a module is imported, unless it is part of Python or of an installed package.

    Nothing is imported. Of a package, these are its own file and that of the module; a folder without `__init__.py`,
    which Python imports too, has only the latter.
    """
    if module.endswith(".py"):
        return [Path(module)]
    if module.partition(".")[0] in sys.stdlib_module_names:
        return []
    found: list[Path] = []
    folders: list[str] | None = None
    for name in module.split("."):
        spec = _spec_of(name) if folders is None else importlib.machinery.PathFinder.find_spec(name, folders)
        if spec is None:
            break
        if spec.has_location and spec.origin is not None:
            found.append(Path(spec.origin))
        folders = list(spec.submodule_search_locations or ())
    return [file for file in found if not _is_installed(file)]


def _spec_of(name: str) -> importlib.machinery.ModuleSpec | None:
    try:
        return importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None


def _is_installed(file: Path) -> bool:
    folders = [sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib", "platstdlib")]
    return any(file.is_relative_to(folder) for folder in (*folders, site.getusersitepackages()))


@cache
def _from_module(name: str) -> Any:
    for file in _files_to_trust(name):
        check_trusted(file, hashlib.sha256(read_plugin(file)).hexdigest())
    return importlib.import_module(name)


def _from_file(path: Path) -> Any:
    source = read_plugin(path)
    check_trusted(path, hashlib.sha256(source).hexdigest())
    return _loaded(path, source)


@cache
def _loaded(path: Path, source: bytes) -> Any:
    """Runs a file, once for each version of it."""
    digest = hashlib.sha256(str(path).encode() + source).hexdigest()
    return load_module(path, source, f"polytask_own_{path.stem}_{digest[:8]}")


def _checked(function: Callable[..., Any], where: str) -> Callable[[Array, Array], Floats]:
    def checked(gold: Array, predicted: Array) -> Floats:
        try:
            value = float(function(gold.copy(), predicted.copy()))
        except Exception as error:  # the user's function may raise anything
            raise UserError(f"{where}: it raised {type(error).__name__}: {error}") from error
        if not np.isfinite(value):
            rows = "all predictions are the same" if len(np.unique(predicted)) == 1 else f"{len(gold)} rows"
            raise UserError(f"{where}: it returned {value}; a metric must be a finite number ({rows})")
        return np.asarray(value, np.float64)

    return checked
