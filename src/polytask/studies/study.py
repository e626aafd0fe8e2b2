"""Reads a study file: a base recipe, its variants and seeds. As strict as recipes are; runs nothing.

base: ../three-tasks.yaml          # a recipe file, or a whole recipe in place; not needed if all variants are files
set: {train.epochs: 2}             # for every variant
seeds: [0, 1, 2]
reference: cross
variants:                          # or `grid: {sampler: [proportional, round_robin], optimizer.lr: [5e-5, 1e-4]}`
  cross: {}
  bi: {tasks.sts.head: {name: bi, form: concat}}
  cosine: cosine.yaml              # a recipe file instead of the base, also as `{recipe: cosine.yaml, max_length: 64}`
"""

import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from polytask.disk.json_files import read_text
from polytask.disk.records import convert
from polytask.evaluation.comparison.records import MARGIN
from polytask.recipe.reading import read_content, recipe_from, with_value
from polytask.recipe.records import Recipe, flat_fields, recipe_to_mapping
from polytask.recipe.yaml_files import load_yaml
from polytask.types import UserError, unknown

NAME = re.compile(r"[^\x00-\x1f/\\]{1,120}")
RECIPE = "recipe"
"""The key of a variant's settings that names a recipe file, which replaces the base."""


@dataclass(frozen=True)
class StudyFile:
    """The fields of a study file."""

    base: Any = None
    """A recipe file, relative to the study's own folder, or a whole recipe."""
    name: str = "study"
    set: Mapping[str, Any] = field(default_factory=dict)
    """Recipe fields set for every variant."""
    variants: Mapping[str, Any] = field(default_factory=dict)
    """For each variant, the recipe fields that it sets, or a recipe file that replaces the base."""
    grid: Mapping[str, Any] = field(default_factory=dict)
    """For each recipe field, the values to try; every combination is a variant."""
    seeds: tuple[int, ...] = (0, 1, 2)
    reference: str | None = None
    """The variant that the others are compared with; default: the first."""
    margin: float = 100 * MARGIN
    """In points: variants whose difference is surely smaller are called the same."""


@dataclass(frozen=True)
class Study:
    """Variants of one recipe, each to be trained with every seed."""

    name: str
    reference: str
    seeds: tuple[int, ...]
    settings: Mapping[str, Mapping[str, Any]]
    """For each variant, the recipe fields that it sets over the base; `recipe` is a file that replaces the base."""
    recipes: Mapping[str, Recipe]
    """For each variant, its recipe with the first seed."""
    margin: float = 100 * MARGIN
    """In points."""

    @property
    def tasks(self) -> tuple[str, ...]:
        """The tasks that are compared: those that all variants have, without plain text."""
        first, *others = self.recipes.values()
        labelled = [name for name, task in first.tasks.items() if task.kind != "text"]
        return tuple(name for name in labelled if all(name in other.tasks for other in others))

    def recipe(self, variant: str, seed: int) -> Recipe:
        return replace(self.recipes[variant], seed=seed)


def read_study(path: str | Path) -> Study:
    """Reads a study from a YAML file; raises a UserError for an unknown recipe field or two equal variants."""
    path = Path(path)
    where = str(path)
    content = load_yaml(read_text(path, "study"), where)
    file: StudyFile = convert(content, StudyFile, where)
    settings = _variants(file, where)
    recipes = {name: _recipe(file, chosen, path, f"{where} (variant {name})") for name, chosen in settings.items()}
    _check_different(recipes, where)
    if len(set(file.seeds)) < len(file.seeds) or not file.seeds:
        raise UserError(f"{where}: seeds: must be one or more different integers, found {list(file.seeds)}")
    reference = file.reference or next(iter(settings))
    if reference not in settings:
        raise UserError(unknown(f"{where}: reference", reference, settings, "variant"))
    first = {name: replace(recipe, seed=file.seeds[0]) for name, recipe in recipes.items()}
    return Study(file.name, reference, file.seeds, settings, first, check_margin(file.margin, f"{where}: margin"))


def check_margin(margin: float, where: str) -> float:
    """Returns the margin if it is valid; `where` starts the error message."""
    if not 0 <= margin <= 100:
        raise UserError(f"{where}: must be in [0, 100] points, found {margin}")
    return margin


def _base(base: Any, study: Path) -> tuple[Mapping[str, Any], Path]:
    """Returns the base recipe's content, and the folder that its files are relative to."""
    if isinstance(base, str):
        path = study.parent / base
        content = read_content(path, "base recipe")
        folder = path.resolve().parent
    else:
        content, folder = base, study.resolve().parent
    if not isinstance(content, Mapping):
        raise UserError(f"{study}: base: must be a recipe file or a recipe, found {base!r}")
    return content, folder


def _variants(file: StudyFile, where: str) -> dict[str, Mapping[str, Any]]:
    """Returns the settings of each variant, from the list of variants or from the grid."""
    if bool(file.variants) == bool(file.grid):
        raise UserError(f"{where}: give either variants (named) or a grid (every combination)")
    if file.variants:
        for name, chosen in file.variants.items():
            if not NAME.fullmatch(name):
                raise UserError(
                    f"{where}: variants: a name must have 1 to 120 characters and no slashes, found {name!r}"
                )
            if not isinstance(chosen, Mapping | str | None):
                raise UserError(f"{where}: variants.{name}: must be recipe fields or a recipe file, found {chosen!r}")
        return {
            name: {RECIPE: chosen} if isinstance(chosen, str) else dict(chosen or {})
            for name, chosen in file.variants.items()
        }
    for axis, values in file.grid.items():
        if not isinstance(values, list) or not values:
            raise UserError(f"{where}: grid.{axis}: must be a list of values, found {values!r}")
    combinations = itertools.product(*file.grid.values())
    chosen = [dict(zip(file.grid, values, strict=True)) for values in combinations]
    return {", ".join(f"{axis}={shown(value)}" for axis, value in one.items()): one for one in chosen}


def shown(value: Any) -> str:
    """Formats a setting's value for a variant's name: `bi(form=concat)`, `0.001`."""
    if isinstance(value, Mapping):
        inside = ", ".join(f"{k}={shown(v)}" for k, v in value.items() if k != "name")
        return f"{value.get('name', '')}({inside})" if inside else str(value.get("name"))
    return str(value)


def _recipe(file: StudyFile, settings: Mapping[str, Any], study: Path, where: str) -> Recipe:
    content, folder = _base(settings.get(RECIPE, file.base), study)
    for key in ("seed", "name"):
        if key in settings or key in file.set:
            raise UserError(f"{where}: {key} cannot be set; use `seeds:` and `name:` of the study")
    if RECIPE in file.set:
        raise UserError(f"{where}: set: cannot have {RECIPE}; use `base:`, which is the recipe of all variants")
    for key, value in [*file.set.items(), *settings.items()]:
        if key != RECIPE:
            content = with_value(content, key.split("."), value)
    return replace(recipe_from(content, where=where, folder=folder), name=file.name)


def _check_different(recipes: Mapping[str, Recipe], where: str) -> None:
    for (one, first), (other, second) in itertools.combinations(recipes.items(), 2):
        if recipe_to_mapping(first) == recipe_to_mapping(second):
            raise UserError(f"{where}: the variants {one!r} and {other!r} are the same recipe")


def differences(recipes: Mapping[str, Recipe]) -> dict[str, dict[str, Any]]:
    """Returns the fields in which recipes differ, with the value of each recipe; seeds and names are left out."""
    flat = {name: flat_fields(recipe) for name, recipe in recipes.items()}
    fields = dict.fromkeys(key for one in flat.values() for key in one if key not in ("seed", "name"))
    values = {key: {name: one.get(key) for name, one in flat.items()} for key in fields}
    return {key: per_recipe for key, per_recipe in values.items() if len(set(map(repr, per_recipe.values()))) > 1}
