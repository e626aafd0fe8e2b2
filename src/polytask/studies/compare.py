"""Implements `polytask compare`: runs every cell of a study, or takes finished runs, and writes the verdict on them."""

import itertools
import json
import os
import tempfile
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from polytask.disk.atomic import write_atomically
from polytask.disk.hashing import sha256
from polytask.disk.json_files import read_json
from polytask.disk.lock import FolderLock
from polytask.disk.writable import check_target
from polytask.evaluation.comparison.records import MARGIN
from polytask.evaluation.metrics import check_metric
from polytask.processes import refuse_several
from polytask.recipe.reading import read_recipe
from polytask.recipe.records import Recipe, recipe_to_mapping
from polytask.runs.folder import RunFolder
from polytask.runs.own_data import with_named_data
from polytask.runs.prepare import use_code
from polytask.runs.run import start_training
from polytask.studies.cells import Cell, Plan, plan, summary_of
from polytask.studies.engine import Engine
from polytask.studies.local_engine import LocalEngine
from polytask.studies.outlook import StudyOutlook, outlook
from polytask.studies.page import write_page
from polytask.studies.results import (
    NOTHING_TO_COMPARE,
    FinishedRun,
    common_tasks,
    comparisons_json,
    cost_json,
    curves_json,
    environment_of,
    finished_runs,
    scores_json,
    values_json,
    verdict_of,
)
from polytask.studies.runner import CellReport, error_of, run_cells
from polytask.studies.study import Study, check_margin, differences
from polytask.studies.table import FORMAT, write_table
from polytask.studies.throughput import Clock, throughput
from polytask.types import UserError

CALIBRATION_STEPS = 4
PLAN = "study-plan.json"
BUSY = "is running this study; wait for it, stop it, or pass --study DIR for another folder"


@dataclass(frozen=True)
class Cost:
    """The expected time of a cell."""

    cell: Cell
    seconds: float
    measured: str
    """How the time was measured: `2 finished` (runs) or `4 steps`."""


class StudyRunning:
    """A running study: iterate over `reports()`, then call `finish()`. Finished cells never run again."""

    def __init__(
        self,
        study: Study,
        folder: str | Path | None = None,
        workers: int = 1,
        margin: float | None = None,
        trust_plugins: bool = False,
        engine: Engine | None = None,
    ) -> None:
        """`margin`, in points, overrides the study's: variants that surely differ by less are called the same.

        `trust_plugins` remembers that the recipes' plug-ins, which are Python programs, may run. `engine` runs the
        cells, such as a `RayEngine`; without one, `workers` processes of this machine do.
        """
        refuse_several("compare")
        for recipe in study.recipes.values():
            use_code(recipe, trust_plugins)
        if margin is not None:
            study = replace(study, margin=check_margin(margin, "--margin"))
        self.engine = engine or LocalEngine(workers)
        self.study = study
        self.folder = Path(folder) if folder is not None else Path("studies") / study.name
        self.workers = self.engine.workers
        self.errors: dict[str, str] = {}
        if not study.tasks:
            raise UserError(NOTHING_TO_COMPARE)
        for variant, recipe in study.recipes.items():
            for task in recipe.tasks.values():
                check_metric(task.metric, task.kind, f"study, variant {variant}: tasks.{task.name}.metric")
        self._check_folder()
        self.plan: Plan = plan(study, self.folder)
        self._check_same_dev_rows()

    @property
    def waiting(self) -> list[Cell]:
        return [cell for cell in self.plan.cells if not cell.done]

    def reports(self) -> Generator[CellReport]:
        """Runs every cell that has not finished; raises a UserError if another process is running the study."""
        self._write_plan()
        with (
            FolderLock(self.folder, BUSY),
            closing(run_cells(self.plan.cells, self.folder, self.engine)) as reports,
        ):
            clock = Clock(self.folder, self.workers)
            for report in reports:
                if report.error is not None:
                    self.errors[report.cell.key] = report.error
                if report.state == "done":
                    clock.record(report.cell)
                yield report

    def finish(self) -> dict[str, Any]:
        """Compares the runs that have finished, and writes study.json, study.md and report.html into the folder.

        Can be called at any time, also for a study that was interrupted or killed: unfinished runs are named as such.
        """
        self._write_plan()
        runs = finished_runs(self.plan.cells)
        cells = {variant: [c for c in self.plan.cells if c.variant == variant] for variant in self.study.recipes}
        content = study_json(self.study, runs, {v: [self._cell_json(c) for c in own] for v, own in cells.items()})
        return write_study(self.folder, {**content, "workers": self.workers, "throughput": throughput(self.folder)})

    def costs(self) -> list[Cost]:
        """Estimates the time of each unfinished cell from finished cells of its variant, or from a few steps."""
        times: dict[str, Cost] = {}
        for cell in self.waiting:
            if cell.variant not in times:
                times[cell.variant] = self._cost(cell)
        return [replace(times[cell.variant], cell=cell) for cell in self.waiting]

    def outlook(self) -> StudyOutlook:
        """Estimates the gaps that the plan could confirm."""
        return outlook(self.study, self.plan)

    def _cost(self, cell: Cell) -> Cost:
        finished = [summary_of(c.folder) for c in self.plan.cells if c.variant == cell.variant and c.done]
        if finished:
            seconds = median(summary["seconds"] for summary in finished if summary is not None)
            return Cost(cell, seconds, f"{len(finished)} finished")
        estimate = calibrated_seconds(cell, self.plan.dev_tokens[cell.variant], f"variant {cell.variant}")
        return Cost(cell, estimate, f"{CALIBRATION_STEPS} steps")

    def _cell_json(self, cell: Cell) -> dict[str, Any]:
        summary = summary_of(cell.folder)
        error = None if summary else self.errors.get(cell.key) or error_of(cell, self.folder)
        state = "done" if summary else "failed" if error else "missing"
        return {
            "seed": cell.seed,
            "run": cell.folder.relative_to(self.folder).as_posix(),
            "state": state,
            "error": error,
            "values": values_json(summary, self.study.tasks) if summary else {},
        }

    def _identity(self) -> dict[str, Any]:
        """Returns what identifies a study: name, variants and reference (seeds may be added)."""
        recipes = {name: recipe_to_mapping(replace(r, seed=0)) for name, r in self.study.recipes.items()}
        return {"name": self.study.name, "reference": self.study.reference, "recipes": recipes}

    def _check_same_dev_rows(self) -> None:
        """Refuses variants whose scores could not be compared, before anything runs."""
        reference = self.study.reference
        for variant, recipe in self.study.recipes.items():
            for task in self.study.tasks:
                where = f"study, variant {variant}: tasks.{task}"
                if recipe.tasks[task].metric != self.study.recipes[reference].tasks[task].metric:
                    raise UserError(f"{where}.metric: must be that of {reference}, the reference")
                if self.plan.dev_rows[variant][task] != self.plan.dev_rows[reference][task]:
                    raise UserError(f"{where}.dev: must have the same rows as in {reference}, the reference")

    def _write_plan(self) -> None:
        """Writes which study the folder belongs to."""
        write_atomically(self.folder / PLAN, json.dumps(self._identity(), indent=1))

    def _check_folder(self) -> None:
        check_target(self.folder, folder=True)
        path = self.folder / PLAN
        if not path.exists():
            if self.folder.exists() and any(self.folder.iterdir()):
                raise UserError(f"{self.folder}: the folder holds other files; pass --study DIR to choose another one")
            return
        other = read_json(path)
        if other != json.loads(json.dumps(self._identity())):
            changed = [k for k in ("name", "reference", "recipes") if other.get(k) != self._identity()[k]]
            raise UserError(
                f"{self.folder}: the folder belongs to another study (its {' and '.join(changed)} differ); pass "
                "--study DIR to choose another one"
            )


def calibrated_seconds(cell: Cell, dev_tokens: int, where: str) -> float:
    """Estimates a cell's seconds from a few steps; an evaluation takes a third of a step's time per token.

    `where` starts the message of an error in these steps.
    """
    with tempfile.TemporaryDirectory() as folder:
        try:
            running = start_training(cell.recipe, Path(folder) / "run")
            reports = list(itertools.islice(running.steps(), CALIBRATION_STEPS))
        except UserError as error:  # its own message names a temporary run
            raise UserError(f"{where}: its first steps fail: {error.__cause__ or error}") from error
    reports = reports[1:] or reports  # the first step is slower; a run may have no other
    step = median(report.seconds for report in reports)
    per_token = sum(report.seconds for report in reports) / sum(report.tokens for report in reports)
    settings = cell.recipe.train
    evaluations = cell.steps // (settings.evaluate_every or cell.steps // settings.epochs) + 1
    evaluations += len(running.session.sampler.stages)
    return cell.steps * step + evaluations * dev_tokens * per_token / 3


def study_json(study: Study, runs: Sequence[FinishedRun], cells: Mapping[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Returns the content of study.json; `cells` are the records of each variant's cells."""
    verdict = verdict_of(runs, study.reference, study.margin / 100) if runs else None
    own = {variant: [run for run in runs if run.variant == variant] for variant in study.recipes}
    scores = runs[0].summary["evaluations"]["dev"] if runs else {}
    return {
        "format": FORMAT,
        "name": study.name,
        "reference": study.reference,
        "seeds": list(study.seeds),
        "margin": study.margin,
        "tasks": {task: _task_json(t, scores[task]) for task, t in (common_tasks(runs) if runs else {}).items()},
        "variants": {
            variant: {
                "settings": study.settings[variant],
                "cells": cells[variant],
                "scores": scores_json(verdict, variant),
                "cost": cost_json(own[variant]),
            }
            for variant in study.recipes
        },
        "comparisons": comparisons_json(verdict),
        "curves": {variant: curves_json(own[variant]) for variant in study.recipes},
        "differences": differences(study.recipes),
        "environment": environment_of(runs),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _task_json(about: Mapping[str, Any], score: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "kind": about["kind"],
        "metric": about["metric"],
        "examples": score["examples"],
        "greater_is_better": score.get("greater_is_better", True),
    }


def write_study(folder: Path, content: dict[str, Any]) -> dict[str, Any]:
    """Writes study.json, and study.md and report.html from it."""
    write_atomically(folder / "study.json", json.dumps(content, indent=1, ensure_ascii=False))
    write_table(folder)
    write_page(folder)
    return content


# --- finished runs ----------------------------------------------------------------------------------------------------


def compare_runs(
    folders: Sequence[str | Path], target: str | Path = "comparison", margin: float | None = None
) -> dict[str, Any]:
    """Compares finished runs. Runs that differ only in their seed are one variant; the first is the reference.

    Variants whose difference is surely smaller than `margin` (in points, 0.5 by default) are called the same.
    """
    margin = 100 * MARGIN if margin is None else check_margin(margin, "--margin")
    target = Path(target)
    check_target(target, folder=True)
    own = (target / "study.json").exists() and not (target / PLAN).exists()
    if target.exists() and any(target.iterdir()) and not own:
        raise UserError(f"{target}: the folder holds other files; pass --study DIR to choose another one")
    runs, recipes = _grouped([Path(folder) for folder in folders])
    if len(recipes) < 2:
        raise UserError("compare: all runs have the same recipe; add a run of another recipe to compare them")
    reference = next(iter(recipes))
    seeds = tuple(sorted({run.seed for run in runs}))
    changed = differences(recipes)
    settings = {variant: {field: values[variant] for field, values in changed.items()} for variant in recipes}
    study = Study(target.name, reference, seeds, settings, recipes, margin)
    cells = {
        variant: [
            {
                "seed": run.seed,
                "run": Path(os.path.relpath(run.folder, target)).as_posix(),
                "state": "done",
                "error": None,
                "values": values_json(run.summary, study.tasks),
            }
            for run in runs
            if run.variant == variant
        ]
        for variant in recipes
    }
    return write_study(target, {**study_json(study, runs, cells), "workers": 0})


def _grouped(folders: Sequence[Path]) -> tuple[list[FinishedRun], dict[str, Recipe]]:
    if len(set(map(os.path.realpath, folders))) < max(2, len(folders)):
        raise UserError("compare: give two or more different runs")
    recipes: dict[str, Recipe] = {}
    runs: list[FinishedRun] = []
    for folder in folders:
        summary = summary_of(folder)
        if summary is None:
            raise UserError(f"{folder}: not a finished run: it has no summary.json")
        recipe = with_named_data(read_recipe(RunFolder(folder).recipe), RunFolder(folder))
        recipe = _with_hashed_plugins(recipe)
        plain = replace(recipe, seed=0, name="")
        same = [name for name, other in recipes.items() if replace(other, seed=0, name="") == plain]
        variant = same[0] if same else _free_name(folder, recipes)
        recipes.setdefault(variant, recipe)
        if any(run.variant == variant and run.seed == recipe.seed for run in runs):
            raise UserError(f"{folder}: another run has the same recipe and the same seed {recipe.seed}")
        runs.append(FinishedRun(variant, recipe.seed, folder, summary))
    return runs, recipes


def _with_hashed_plugins(recipe: Recipe) -> Recipe:
    """The recipe with the content of its plug-ins in place of their paths, which are different for every run."""
    files = [Path(file) for file in recipe.plugins]
    return replace(recipe, plugins=tuple(f"{file.name} {sha256(file)[:16]}" for file in files if file.is_file()))


def _free_name(folder: Path, taken: Mapping[str, Any]) -> str:
    names = (folder.resolve().name, str(folder), str(folder.resolve()))
    return next(name for name in names if name not in taken)
