"""Users' own metrics: functions that a recipe names as `module:function`, or by the name that a plug-in registers.

Imports them; knows no task's data. This runs the user's code, and only because a recipe names the function. A module
that is a file next to the recipe is written into the run's recipe as an absolute path; every other module must be
installed.
"""

import hashlib
import importlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from polytask.evaluation.metrics import Array, Floats, Metric, all_metrics_for, chosen_metric
from polytask.methods import METRIC, find_method
from polytask.plugins.files import load_module
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
            return find_method(METRIC, name, where)
        except UserError as error:
            raise UserError(f"{error}. A function that no plug-in registers is named as module:function") from None
    try:
        module = _from_file(Path(module_name)) if module_name.endswith(".py") else importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # the user's module may raise anything
        raise UserError(f"{where}: the module cannot be imported: {type(error).__name__}: {error}") from error
    function = getattr(module, name, None)
    if not callable(function):
        raise UserError(f"{where}: {module_name} has no function {name}")
    checked: Callable[..., Any] = function
    return checked


@cache
def _from_file(path: Path) -> Any:
    name = f"polytask_own_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    return load_module(path, path.read_bytes(), name)


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
