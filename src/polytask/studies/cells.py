"""The cells of a study: one variant with one seed is one run, identified by its inputs.

A cell's key is a hash of its recipe, its data, its encoder and the code that its result depends on. A key never runs
twice. Knows folders, starts nothing.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from polytask.build import encoder_origin
from polytask.disk.kept import keeping_values
from polytask.recipe.records import Recipe, recipe_to_mapping
from polytask.runs.folder import RunFolder
from polytask.runs.prepare import Prepared, methods_origin, prepare
from polytask.runs.summary import read_summary
from polytask.runs.teachers import teacher_origin
from polytask.studies.study import Study
from polytask.types import UserError, errors_in

NOT_IN_A_RESULT = frozenset({"cli", "contracts", "evaluation.comparison", "export", "reports", "studies", "tuning"})
"""Packages that no run's weights, scores, predictions or costs depend on."""


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
    """Every cell of a study, and the data that it scores."""

    cells: tuple[Cell, ...]
    dev_examples: Mapping[str, Mapping[str, int]]
    """For each variant, the number of dev examples of each task."""
    dev_rows: Mapping[str, Mapping[str, str]]
    """For each variant, the fingerprint of each task's dev file."""
    dev_tokens: Mapping[str, int]
    """For each variant, the number of tokens of all its dev examples."""


def plan(study: Study, folder: Path) -> Plan:
    """Prepares each variant once, so that errors in any of them are raised before anything runs."""
    cells: list[Cell] = []
    examples, rows, tokens = {}, {}, {}
    with keeping_values():  # most variants have the same encoder and data
        for variant, variant_recipe in study.recipes.items():
            with errors_in(f"variant {variant}"):
                ready = prepare(variant_recipe)
            steps = ready.recipe.train.epochs * ready.steps_per_epoch
            dev = ready.splits("dev")
            examples[variant] = {task: len(split) for task, split in dev.items()}
            rows[variant] = {task: split.fingerprint for task, split in dev.items()}
            tokens[variant] = dev_tokens(ready)
            for seed in study.seeds:
                recipe = study.recipe(variant, seed)
                key = cell_key(recipe, ready)
                cells.append(Cell(variant, seed, recipe, key, folder / "cells" / key, steps))
    return Plan(tuple(cells), examples, rows, tokens)


def dev_tokens(prepared: Prepared) -> int:
    """Counts the tokens of all dev examples, as they are in streams."""
    formats = {task: prepared.model.input_format(task) for task in prepared.tasks}
    return sum(
        int(prepared.packer.lengths(split.store.lengths(), formats[task]).sum())
        for task, split in prepared.splits("dev").items()
    )


def cell_key(recipe: Recipe, prepared: Prepared) -> str:
    """Hashes the inputs of a cell: its recipe without the name, its data, encoder and teachers, and the code."""
    data = {
        task: {name: split.fingerprint for name, split in entry.splits.items()}
        for task, entry in prepared.tasks.items()
    }
    content = [
        recipe_to_mapping(replace(recipe, name="", plugins=())),
        data,
        encoder_origin(recipe.encoder)["encoder_sha256"],
        teacher_origin(recipe),
        code_fingerprint(),
        methods_origin(prepared),
    ]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


@cache
def code_fingerprint() -> str:
    """Returns the SHA-256 of the source that a cell's result depends on.

    Included are all packages that take part in `polytask train`, from reading the data to writing the predictions, and
    any package that is added later: an unnecessary run is better than a stale result. Left out are the packages of
    `NOT_IN_A_RESULT`, which compare, show or convert what a run has written, and the modules at the root that only
    start the program (`__init__`, `__main__`, `version`). So a change in a command or a page trains nothing again.
    """
    digest = hashlib.sha256()
    for path in result_files(Path(__file__).parent.parent):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def result_files(source: Path) -> list[Path]:
    """Lists the files below `source` (the folder of the package polytask) that a cell's result depends on."""
    left_out = [source.joinpath(*package.split(".")) for package in NOT_IN_A_RESULT]
    left_out += [source / f"{module}.py" for module in ("__init__", "__main__", "version")]
    files = sorted(path for path in source.rglob("[!.]*") if path.is_file() and path.suffix != ".pyc")
    return [path for path in files if not any(path.is_relative_to(other) for other in left_out)]


def summary_of(run: Path) -> dict[str, Any] | None:
    """Returns the summary of a finished run; None if it has not finished."""
    try:
        summary = read_summary(RunFolder(run).summary)
    except UserError:
        return None
    return summary.to_json() if summary.finished else None
