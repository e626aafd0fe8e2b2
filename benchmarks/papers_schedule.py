"""Studies of recipes/papers/ with other settings, and many of them trained with one pool of workers."""

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from polytask import StudyRunning, UserError, read_study
from polytask.disk.kept import keeping_values
from polytask.recipe.records import flat_fields
from polytask.recipe.yaml_files import load_yaml
from polytask.studies.cells import Cell
from polytask.studies.local_engine import LocalEngine
from polytask.studies.runner import run_cells

PAPERS = Path(__file__).parent.parent / "recipes" / "papers"
FIRST_SEEDS = 3
"""Seeds that all studies have before one of them has its next."""


@dataclass(frozen=True)
class Changes:
    """What differs from a study's recipes, as --set, --rate and --seeds give it."""

    set: Sequence[str] = ()
    rate: float = 1
    seeds: Sequence[int] = ()


def write_changed(path: Path, changes: Changes, file: Path) -> str:
    """Write a study with changes and absolute paths to a file; returns its name."""
    study = with_changes(path, changes.set, changes.seeds)
    write_yaml(study, file)
    if changes.rate != 1:
        write_yaml(with_rates(study, file, changes.rate), file)
    name: str = study["name"]
    return name


@dataclass
class Planned:
    """The studies of a schedule. They share the folder of the cells, whose names depend on nothing but their inputs."""

    studies: Path
    changes: dict[Path, Changes]
    """By study file."""
    running: dict[Path, StudyRunning] = field(default_factory=dict)
    refused: set[Path] = field(default_factory=set)

    @classmethod
    def read(cls, schedule: Path, studies: Path, only: Sequence[str], settings: Sequence[str]) -> "Planned":
        """The studies of a schedule whose names contain a word of `only`; `settings` are for all of them."""
        entries: dict[str, Any] = yaml.safe_load(schedule.read_text(encoding="utf-8"))
        chosen = {name: one for name, one in entries.items() if not only or any(word in name for word in only)}
        return cls(studies, {PAPERS / f"{name}.yaml": changes_in(one, settings) for name, one in chosen.items()})

    def train(self, workers: int, seconds: float) -> Iterator[str]:
        """Train all cells, as far as the time allows, and yield a line for each that has ended."""
        ends = time.monotonic() + seconds
        running = run_cells(self._cells(), self.studies, LocalEngine(workers))
        with keeping_values(), closing(running) as reports:
            for report in reports:
                cell, error = report.cell, (report.error or "").strip().splitlines()[-1:]
                if report.state in ("done", "failed"):
                    yield ", ".join([cell.recipe.name, cell.variant, f"seed {cell.seed}", report.state, *error])
                if time.monotonic() > ends:
                    return

    def _cells(self) -> Iterator[Cell]:
        """Each cell once. A study is planned when its first cell is needed."""
        seen: set[str] = set()
        for first, last in ((0, FIRST_SEEDS), (FIRST_SEEDS, None)):
            for path in self.changes:
                by_seed = sorted(self._plan(path), key=lambda cell: cell.seed)
                for _, own in itertools.islice(itertools.groupby(by_seed, lambda cell: cell.seed), first, last):
                    for cell in own:
                        if cell.key not in seen:
                            seen.add(cell.key)
                            yield cell

    def _plan(self, path: Path) -> Sequence[Cell]:
        """The cells of a study; none if there is an error in it, which is printed."""
        if path in self.refused:
            return ()
        try:
            return self._running(path).plan.cells
        except UserError as error:
            print(f"{path}: {error}", flush=True)
            self.refused.add(path)
            return ()

    def _running(self, path: Path) -> StudyRunning:
        if path not in self.running:
            self.studies.mkdir(parents=True, exist_ok=True)
            file = self.studies / f"{path.parent.name}-{path.stem}.yaml"
            folder = self.studies / write_changed(path, self.changes[path], file)
            self.running[path] = running = StudyRunning(read_study(file), folder)
            running.finish()  # the folder is this study's from now on
            (self.studies / "cells").mkdir(exist_ok=True)
            if not (folder / "cells").exists():
                (folder / "cells").symlink_to("../cells")
        return self.running[path]

    def finish(self) -> Iterator[tuple[Path, Changes, Path]]:
        """Write the results of each study that has finished runs."""
        for path, changes in self.changes.items():
            if any(cell.done for cell in self._plan(path)):
                self.running[path].finish()
                yield path, changes, self.running[path].folder


def changes_in(entry: Mapping[str, Any], settings: Sequence[str]) -> Changes:
    own = [f"{name}={value}" for name, value in entry.get("set", {}).items()]
    return Changes([*own, *settings], entry.get("rate", 1), range(entry["seeds"]))


def with_changes(path: Path, settings: Sequence[str], seeds: Sequence[int]) -> dict[str, Any]:
    """The study with absolute paths, and with other settings and seeds."""
    study: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    changes = {field: load_yaml(value, f"--set {field}") for field, _, value in (s.partition("=") for s in settings)}
    study["set"] = {**study.get("set", {}), **changes}
    study["seeds"] = list(seeds) or study["seeds"]
    study["variants"] = {name: absolute(variant, path.parent) for name, variant in study["variants"].items()}
    return study


def absolute(variant: str | dict[str, Any], folder: Path) -> str | dict[str, Any]:
    if isinstance(variant, str):
        return str((folder / variant).resolve())
    return {**variant, "recipe": str((folder / variant["recipe"]).resolve())}


def write_yaml(study: Mapping[str, Any], file: Path) -> None:
    file.write_text(yaml.safe_dump(dict(study), sort_keys=False, allow_unicode=True), encoding="utf-8")


def with_rates(study: Mapping[str, Any], file: Path, factor: float) -> dict[str, Any]:
    """The study with the learning rates of every variant multiplied; `file` holds the study."""
    variants = {}
    for name, recipe in read_study(file).recipes.items():
        variant = study["variants"][name]
        rates = {"optimizer.lr": float(f"{factor * recipe.optimizer.options['lr']:.12g}")}
        if recipe.train.head_lr is not None:
            rates["train.head_lr"] = float(f"{factor * recipe.train.head_lr:.12g}")
        variants[name] = {**({"recipe": variant} if isinstance(variant, str) else variant), **rates}
    return {**study, "variants": variants}


def changes_of(path: Path, changes: Changes) -> dict[str, Any]:
    """The changes, with the values that the recipes of a study have."""
    fields = [flat_fields(recipe) for recipe in read_study(path).recipes.values()]
    names = [setting.partition("=")[0] for setting in changes.set]
    values = {name: list(dict.fromkeys(str(own[name]) for own in fields if name in own)) for name in names}
    return {"set": changes.set, "rate": changes.rate, "recipes": values}
