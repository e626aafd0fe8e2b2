"""Implements `polytask tune`: reads what is asked for, and runs the search to its end."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from polytask.processes import refuse_several
from polytask.recipe.reading import portable_content, recipe_from, with_setting
from polytask.recipe.records import Recipe, recipe_to_mapping
from polytask.runs.prepare import use_code
from polytask.studies.engine import Engine
from polytask.studies.local_engine import LocalEngine
from polytask.tuning.fields import check_fields, default_fields, read_field
from polytask.tuning.plan import make_plan
from polytask.tuning.result import Tuned
from polytask.tuning.rows import read_hold_back
from polytask.tuning.search import Tuning
from polytask.tuning.trials import check_optuna
from polytask.types import UserError

BUDGET = re.compile(r"([0-9.]+)\s*(s|m|min|h)?")
UNITS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, None: 60.0}


def tune(
    recipe: Recipe | str | Path | Mapping[str, Any],
    budget: str | float,
    vary: Iterable[str] = (),
    settings: Iterable[str] = (),
    folder: str | Path | None = None,
    *,
    workers: int = 1,
    hold_back: str | float = 0.5,
    top: int = 3,
    trust_plugins: bool = False,
    engine: Engine | None = None,
) -> Tuned:
    """Searches for better settings of a recipe within a time, and tests whether the best ones beat the recipe.

    `recipe` is a file, a mapping or a Recipe; `budget` is a time such as "20m", or a number of minutes. `vary` has
    fields and their values, such as "optimizer.lr=1e-5..1e-3:log" or "sampler=round_robin,annealed"; without any,
    common fields are varied. `engine` runs the cells, such as a `RayEngine`; without one, `workers` processes of this
    machine do. The other arguments are those of `polytask tune`; the same call continues a tuning that was stopped.
    """
    options: dict[str, Any] = {"workers": workers, "hold_back": hold_back, "top": top, "trust_plugins": trust_plugins}
    tuning = start_tuning(recipe, budget, vary, settings, folder, engine=engine, **options)
    for _ in tuning.reports():
        pass
    return tuning.finish()


def start_tuning(
    recipe: Recipe | str | Path | Mapping[str, Any],
    budget: str | float,
    vary: Iterable[str] = (),
    settings: Iterable[str] = (),
    folder: str | Path | None = None,
    *,
    workers: int = 1,
    hold_back: str | float = 0.5,
    top: int = 3,
    trust_plugins: bool = False,
    engine: Engine | None = None,
) -> Tuning:
    """Checks everything and prepares a tuning: iterate its `reports()`, then call `finish()`."""
    refuse_several("tune")
    check_optuna()
    seconds, share = read_budget(budget), read_hold_back(hold_back)
    if top < 1:
        raise UserError(f"--top: must be at least 1, found {top}")
    engine = engine or LocalEngine(workers)
    named = tuple(read_field(text) for text in vary)
    content = _content(recipe, settings)
    base = recipe_from(content, where=str(recipe) if isinstance(recipe, str | Path) else "recipe")
    use_code(base, trust_plugins)
    if named:
        check_fields(named, content)
    target = Path(folder) if folder is not None else Path("tuning") / base.name
    plan = make_plan(content, base, named or tuple(default_fields(base)), share, target)
    return Tuning(plan, seconds, engine, top)


def read_budget(budget: str | float) -> float:
    """Reads a time such as 90s, 20m or 2h; returns seconds. A number without a unit is in minutes."""
    match = BUDGET.fullmatch(str(budget).strip())
    try:
        seconds = float(match[1]) * UNITS[match[2]] if match else 0.0
    except ValueError:
        seconds = 0.0
    if seconds <= 0:
        raise UserError(f"--budget: must be a time such as 90s, 20m or 2h, found {budget}")
    return seconds


def _content(recipe: Recipe | str | Path | Mapping[str, Any], settings: Iterable[str]) -> Mapping[str, Any]:
    """Returns the recipe as a file contains it, with absolute paths."""
    if isinstance(recipe, str | Path):
        return portable_content(recipe, settings)
    content: Mapping[str, Any]
    content = recipe_to_mapping(recipe) if isinstance(recipe, Recipe) else {"data": str(Path.cwd()), **recipe}
    for setting in settings:
        content = with_setting(content, setting)
    return content
