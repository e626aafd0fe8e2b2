"""The search: successive halving over trials, then the best trials and the recipe again with fresh seeds.

Every run is a cell of the folder (studies/cells.py), so that none runs twice. What was tried and how it scored is in
the database (trials.py): a process that is killed loses nothing but the run that it was in, which resumes.
"""

import math
import shutil
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from polytask.disk.kept import keeping_values
from polytask.disk.lock import FolderLock
from polytask.runs.folder import RunFolder
from polytask.studies.cells import Cell, summary_of
from polytask.studies.compare import CALIBRATION_STEPS, calibrated_seconds
from polytask.studies.engine import Engine
from polytask.studies.runner import CellReport, State, run_cells
from polytask.studies.table import is_finite
from polytask.studies.throughput import Clock, finish_times
from polytask.tuning.budget import KEPT, MOST_SEEDS, Budget
from polytask.tuning.plan import RUNGS, START, TunePlan
from polytask.tuning.result import Tuned, write_result
from polytask.tuning.trials import Trial, Trials
from polytask.types import UserError

BUSY = "is running this tuning; wait for it, stop it, or pass --folder DIR for another folder"
SHARES = {1: "1/9 of the steps", 3: "1/3 of the steps", 9: "all steps"}


@dataclass(frozen=True)
class TuneReport:
    """The state of one run of a tuning."""

    name: str
    """`trial 3` or `recipe`."""
    part: str
    """`1/9 of the steps` in the search; `seed 2` in the final."""
    state: State
    settings: Mapping[str, Any]
    score: float | None = None
    """On dev, of a search's run that has finished."""
    error: str | None = None


class Tuning:
    """A running tuning: iterate over `reports()`, then call `finish()`. Finished runs never run again."""

    def __init__(self, plan: TunePlan, budget: float, engine: Engine, top: int = 3) -> None:
        """`budget` is in seconds."""
        self.plan, self.engine, self.workers, self.folder = plan, engine, engine.workers, plan.folder
        used = max(finish_times(self.folder).values(), default=0.0)
        self.budget = Budget(budget, self.workers, top, used)
        self._clock = Clock(self.folder, self.workers)
        self.trials = Trials(self.folder, plan.recipe.name, plan.fields, plan.recipe.seed)
        self._errors: dict[str, str] = {}
        self._running: set[str] = set()
        """Keys of the cells whose worker has not answered. A run has its summary before it has checked its model."""
        self._cells: dict[int, dict[int, Cell]] = {}
        self._parts: dict[str, tuple[str, Mapping[str, Any]]] = {}
        """By key of a cell: its part and its settings."""
        for trial in self.trials.all():
            for ninths, seconds in trial.seconds.items():
                self.budget.record(ninths, seconds)
        if self.trials.note("seconds") is None:
            self.trials.take_note("seconds", self._calibrate())
        self.budget.calibrated = self.trials.note("seconds")
        if not self.trials.all():
            self.budget.check()

    @property
    def seeds(self) -> range:
        """The fresh seeds of the final runs."""
        return range(self.plan.recipe.seed + 1, self.plan.recipe.seed + 1 + MOST_SEEDS)

    def reports(self) -> Generator[TuneReport]:
        """Runs the search and the final, as long as the budget lasts."""
        with (
            FolderLock(self.folder, BUSY),
            keeping_values(),  # most trials have the same encoder and data
            closing(run_cells(self._schedule(), self.folder, self.engine)) as reports,
        ):
            for report in reports:
                if report.state == "done":
                    self._clock.record(report.cell)
                if report.state == "started":
                    self._running.add(report.cell.key)
                elif report.state in ("done", "failed"):
                    self._running.discard(report.cell.key)
                if report.error is not None:
                    self._errors[report.cell.key] = report.error
                yield self._report(report)

    def _report(self, report: CellReport) -> TuneReport:
        part, settings = self._parts[report.cell.key]
        summary = summary_of(report.cell.folder) if report.state == "done" else None
        score = None if summary is None else self.plan.score(summary)
        return TuneReport(report.cell.variant, part, report.state, settings, score, report.error)

    def finish(self) -> Tuned:
        """Writes best.yaml, tune.json and report.html from what has finished; can be called at any time."""
        with keeping_values():
            final = self._final_cells(self.trials.note("finalists") or [])
            return write_result(self.plan, self.trials, final, self.budget.total, self.workers)

    # --- what runs next -----------------------------------------------------------------------------------------------
    def _schedule(self) -> Iterator[Cell | None]:
        """Yields each run when a worker is free for it; None while the next one depends on those that are running."""
        if (self.trials.note("finished") or 0.0) >= self.budget.total:
            return
        bracket = self.trials.running()
        while bracket or (bracket := self._new_bracket()):
            size = sum(trial.bracket == bracket[0].bracket for trial in self.trials.all())
            for ninths in RUNGS:
                yield from self._rung(bracket, ninths)
                size = math.ceil(size / KEPT)
                bracket = self._promoted(bracket, ninths, size)
        yield from self._final()
        self.trials.take_note("finished", self.budget.total)

    def _new_bracket(self) -> list[Trial]:
        """Starts the largest bracket that the time allows; returns no trials if there is no time for any."""
        known = self.trials.all()
        size = self.budget.bracket(first=not known)
        if size is None:
            return []
        start = self.plan.start
        usable = all(field.contains(start[field.field]) for field in self.plan.fields)
        number = max((trial.bracket for trial in known), default=-1) + 1
        bracket = self.trials.start(number, size, start if usable and not known else None)
        if bracket:
            self.trials.take_note("finalists", None)  # of an earlier final, with a smaller budget
        return bracket

    def _rung(self, bracket: Sequence[Trial], ninths: int) -> Iterator[Cell | None]:
        """Runs the trials for this share of the steps, and records each as it ends."""
        pending: dict[int, tuple[Trial, Cell]] = {}
        for trial in bracket:
            try:
                cell = self._cell(trial, ninths)
            except UserError as error:  # values that are valid one by one may not fit together
                self.trials.end(trial, "fail", str(error))
                continue
            if cell.done or self.budget.allows(ninths):
                pending[trial.number] = trial, cell
                yield cell
                self._record(pending, ninths)
        while self._record(pending, ninths):
            yield None

    def _cell(self, trial: Trial, ninths: int) -> Cell:
        name = f"trial {trial.number}"
        if trial.number not in self._cells:
            self._cells[trial.number] = self.plan.cells(name, trial.settings)
        cell = self._cells[trial.number][ninths]
        self._parts[cell.key] = SHARES[ninths], trial.settings
        return cell

    def _record(self, pending: dict[int, tuple[Trial, Cell]], ninths: int) -> bool:
        """Writes the scores of the runs that have ended into the database; returns whether others are running."""
        for trial, cell in list(pending.values()):
            summary, error = summary_of(cell.folder), self._errors.get(cell.key)
            if cell.key in self._running or (summary is None and error is None):
                continue
            del pending[trial.number]
            score = math.nan if summary is None else self.plan.score(summary)
            if summary is None or not is_finite(score):
                self.trials.end(trial, "fail", error or "the score is not a number")
                continue
            took = _seconds_of(summary)
            self.budget.record(ninths, took)
            self.trials.report(trial, ninths, score, took, cell.key)
            shutil.rmtree(RunFolder(cell.folder).model.path, ignore_errors=True)  # a search has many runs
        return bool(pending)

    def _promoted(self, bracket: Sequence[Trial], ninths: int, count: int) -> list[Trial]:
        """Ends all trials of a bracket but the best, which go on to the next length; after the last, all of them."""
        numbers = {trial.number for trial in bracket}
        running = [trial for trial in self.trials.running() if trial.number in numbers]
        ranked = sorted((t for t in running if ninths in t.scores), key=lambda t: (-t.scores[ninths], t.number))
        last = ninths == RUNGS[-1]
        best = ranked if last else ranked[:count]
        for trial in running:
            if trial not in best:  # one without a score had no time; as failed, the sampler does not learn from it
                self.trials.end(trial, "pruned" if trial.scores else "fail")
            elif last:
                self.trials.end(trial, "complete")
        return [] if last else best

    # --- the final ----------------------------------------------------------------------------------------------------
    def _final(self) -> Iterator[Cell | None]:
        """Runs the finalists seed by seed, so that all of them have the same seeds when the time is up."""
        if self.trials.note("finalists") is None:
            self.trials.take_note("finalists", self._finalists())
        finalists = self.trials.note("finalists")
        by_seed = zip(*self._final_cells(finalists).values(), strict=True) if finalists else iter(())
        for cells in by_seed:
            waiting = [cell for cell in cells if not cell.done]
            if waiting and self.budget.round_seconds(len(waiting)) > self.budget.left:
                return
            yield from cells
            while any(not cell.done and cell.key not in self._errors for cell in cells):
                yield None
            for cell in waiting:
                if (summary := summary_of(cell.folder)) is not None:
                    self.budget.record(RUNGS[-1], _seconds_of(summary))

    def _finalists(self) -> list[int]:
        """Returns the numbers of the best trials: as many as leave time for three seeds, at least one."""
        others = [t for t in self.trials.all() if t.scores and t.state != "fail" and t.settings != self.plan.start]
        ranked = sorted(others, key=lambda trial: trial.rank, reverse=True)
        return [trial.number for trial in ranked[: self.budget.finalists()]]

    def _final_cells(self, finalists: Sequence[int]) -> dict[str, list[Cell]]:
        """Returns the final runs of the recipe and of each finalist, in the order of the seeds."""
        known = self.trials.all()
        settings = {START: {}, **{f"trial {number}": known[number].settings for number in finalists}}
        cells = {n: self.plan.final_cells(n, one, self.seeds) for n, one in settings.items()} if finalists else {}
        for own in cells.values():
            self._parts |= {cell.key: (f"seed {cell.seed}", settings[cell.variant]) for cell in own}
        return cells

    def _calibrate(self) -> tuple[float, float]:
        """Estimates the seconds of all steps and evaluations of the recipe, and those that every run takes besides."""
        with keeping_values():
            cell, tokens = self.plan.cells(START, {})[RUNGS[-1]], self.plan.num_dev_tokens()
            began = time.monotonic()
            whole = calibrated_seconds(cell, tokens, "recipe")
            took = time.monotonic() - began
        return whole, max(0.0, took - whole * CALIBRATION_STEPS / cell.steps)


def _seconds_of(summary: Mapping[str, Any]) -> float:
    """Returns the time of a whole run, from reading the data to its report."""
    phases = summary.get("phases") or {}
    return float(sum(phases.values()) or summary["seconds"])
