"""The cells of a study: one variant with one seed is one run, identified by its inputs.

A cell's key is a hash of its recipe, its data, its encoder and the code that its result depends on. A key never runs
twice. Knows folders, starts nothing.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from polytask.build import encoder_origin
from polytask.disk.json_files import read_json
from polytask.disk.kept import keeping_values
from polytask.recipe.records import Recipe, recipe_to_mapping
from polytask.runs.folder import RunFolder
from polytask.runs.prepare import Prepared, methods_origin, prepare
from polytask.runs.summary import read_summary
from polytask.runs.teachers import teacher_origin
from polytask.studies.code import code_fingerprint
from polytask.studies.study import Study
from polytask.types import UserError, errors_in


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
    encoder = encoder_origin(recipe.encoder)["encoder_sha256"]
    return _key(recipe, data, encoder, teacher_origin(recipe), methods_origin(prepared))


def key_of_run(recipe: Recipe, folder: Path) -> str | None:
    """Returns the key that a cell with the inputs of this run would have, as its environment.json records them.

    It is that of the cell if the run had the data, the encoder, the teachers and the methods that the study was planned
    with; on another machine, or if a file has changed since, it may not be. None if they cannot be read.
    """
    try:
        content = read_json(RunFolder(folder).environment)
        data = {
            task: {split: about["sha256"] for split, about in splits.items()}
            for task, splits in content["data"].items()
        }
        teachers, methods = ({n: content[n]} if content.get(n) else {} for n in ("teachers_sha256", "methods"))
        return _key(recipe, data, content["encoder_sha256"], teachers, methods)
    except (UserError, KeyError, TypeError, AttributeError):
        return None


def _key(recipe: Recipe, data: Any, encoder: str | None, teachers: Any, methods: Any) -> str:
    recipe_content = recipe_to_mapping(replace(recipe, name="", plugins=()))
    content = [recipe_content, data, encoder, teachers, code_fingerprint(), methods]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def summary_of(run: Path) -> dict[str, Any] | None:
    """Returns the summary of a finished run; None if it has not finished."""
    try:
        summary = read_summary(RunFolder(run).summary)
    except UserError:
        return None
    return summary.to_json() if summary.finished else None
