"""The cells of a study: one variant with one seed is one run, known by what goes into it.

A cell's key is a hash of its recipe, its data, its encoder and the code that decides results. The same key never runs
twice; another key is another cell, whatever it is called. Knows folders, starts nothing.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from polytask.build import encoder_origin
from polytask.recipe.records import Recipe, recipe_to_mapping
from polytask.runs.folder import RunFolder
from polytask.runs.prepare import Prepared, prepare
from polytask.runs.summary import read_summary
from polytask.studies.study import Study
from polytask.types import UserError

# Rooms and files that show, serve or compare results, and cannot change them.
SHOWING = {"cli", "serving", "experiments", "starter", "version", "environment", "__main__", "__init__"}
SHOWING |= {"evaluation.report", "evaluation.plots", "evaluation.card", "evaluation.statistics"}
SHOWING |= {"evaluation.verdict", "evaluation.comparisons", "evaluation.interference", "probing"}
SHOWING |= {"evaluation.seed_noise", "evaluation.power", "evaluation.views"}


@dataclass(frozen=True)
class Cell:
    """One run of a study."""

    variant: str
    seed: int
    recipe: Recipe
    key: str
    folder: Path
    """The run's folder, inside the study's."""
    steps: int

    @property
    def done(self) -> bool:
        return summary_of(self.folder) is not None


@dataclass(frozen=True)
class Plan:
    """Every cell of a study, and what preparing its variants told."""

    cells: tuple[Cell, ...]
    prepared: Mapping[str, Prepared]
    """By variant."""


def plan(study: Study, folder: Path) -> Plan:
    """Prepares each variant once, so that whatever is wrong with any of them is told before anything runs."""
    prepared = {variant: prepare(recipe) for variant, recipe in study.recipes.items()}
    cells = []
    for variant, ready in prepared.items():
        steps = ready.recipe.train.epochs * ready.steps_per_epoch
        for seed in study.seeds:
            recipe = study.recipe(variant, seed)
            key = cell_key(recipe, ready)
            cells.append(Cell(variant, seed, recipe, key, folder / "cells" / key, steps))
    return Plan(tuple(cells), prepared)


def cell_key(recipe: Recipe, prepared: Prepared) -> str:
    data = {
        task: {name: split.fingerprint for name, split in entry.splits.items()}
        for task, entry in prepared.tasks.items()
    }
    content = [
        recipe_to_mapping(replace(recipe, name="")),
        data,
        encoder_origin(recipe.encoder)["encoder_sha256"],
        code_fingerprint(),
    ]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


@cache
def code_fingerprint() -> str:
    """Of every source file that can change what a run ends with."""
    source = Path(__file__).parent.parent
    digest = hashlib.sha256()
    for path in sorted(source.rglob("*.py")):
        parts = path.relative_to(source).with_suffix("").parts
        if not {".".join(parts[:i]) for i in range(1, len(parts) + 1)} & SHOWING:
            digest.update(path.read_bytes())
    return digest.hexdigest()


def summary_of(run: Path) -> dict[str, Any] | None:
    """A finished run's summary; None for one that has not finished."""
    try:
        summary = read_summary(RunFolder(run).summary)
    except UserError:
        return None
    return summary.to_json() if summary.finished else None
