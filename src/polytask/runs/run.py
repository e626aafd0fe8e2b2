"""One recipe, one run folder, from start to finish: prepare -> make_session -> fit -> finish."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from polytask.build import encoder_origin
from polytask.disk.lock import FolderLock
from polytask.machine import set_threads
from polytask.processes import ALONE, ErrorElsewhere, Processes, join_processes
from polytask.recipe.reading import read_recipe, recipe_from
from polytask.recipe.records import Recipe
from polytask.runs.bundle import load_bundle
from polytask.runs.finish import Finished, Gate, finish, finish_again, finished_from
from polytask.runs.folder import RunFolder
from polytask.runs.phases import Phases
from polytask.runs.prepare import Prepared, check_teachers, methods_origin, prepare, use_code
from polytask.runs.score import DevScorer, score_split
from polytask.runs.session import make_session
from polytask.runs.start import Start, open_run
from polytask.runs.summary import Summary, summary_from
from polytask.runs.teachers import load_teachers, teacher_origin
from polytask.training.loop import Session
from polytask.types import EvalReport, StepReport, errors_in


def train(
    recipe: Recipe | str | Path | Mapping[str, Any],
    run: str | Path | None = None,
    settings: Iterable[str] = (),
    resume: bool = False,
    allow_change: bool = False,
    keep_checkpoints: bool = False,
    trust_plugins: bool = False,
) -> Finished:
    """Trains a recipe (a file, a mapping, or a Recipe) to its end and returns the finished run.

    The data in a mapping can be in memory: see `recipe_from`. `trust_plugins` remembers that the recipe's plug-ins,
    which are Python programs, may run.
    """
    options = resume, allow_change, keep_checkpoints, trust_plugins
    with errors_in(recipe if isinstance(recipe, str | Path) else None):
        running = start_training(as_recipe(recipe, settings), run, *options)
    return running.complete()


def as_recipe(recipe: Recipe | str | Path | Mapping[str, Any], settings: Iterable[str] = ()) -> Recipe:
    """Reads a recipe from a file or a mapping; settings cannot change a Recipe."""
    if isinstance(recipe, str | Path):
        return read_recipe(recipe, settings)
    return recipe_from(recipe, settings) if isinstance(recipe, Mapping) else recipe


def start_training(
    recipe: Recipe | str | Path | Mapping[str, Any],
    run: str | Path | None = None,
    resume: bool = False,
    allow_change: bool = False,
    keep_checkpoints: bool = False,
    trust_plugins: bool = False,
) -> "Running":
    """Prepares a run, or a stopped one with `resume`: iterate its `steps()`, then call `finish()`.

    The recipe is a file, a mapping or a Recipe, and the run's folder by default runs/NAME, with the recipe's name.
    A resumed run continues from its newest whole checkpoint. It is refused if the recipe or the data has changed,
    unless `allow_change` is given. When a run has finished its checkpoints are removed, unless `keep_checkpoints` is
    given. `trust_plugins` remembers that the recipe's plug-ins, which are Python programs, may run.
    """
    with errors_in(recipe if isinstance(recipe, str | Path) else None):
        recipe = as_recipe(recipe)
        use_code(recipe, trust_plugins)
        folder = RunFolder(Path(run) if run is not None else Path("runs") / recipe.name)
        return start_run(recipe, folder, FolderLock(folder.path), resume, allow_change, keep_checkpoints)


def start_run(
    recipe: Recipe, folder: RunFolder, lock: FolderLock, resume: bool, allow_change: bool, keep_checkpoints: bool
) -> "Running":
    """`start_training` in a folder that the caller may have locked already."""
    phases, processes = Phases(), join_processes()
    with open_run(folder, recipe, lock, resume, allow_change, processes) as start:
        phases.end("device")
        with processes.one_error_for_all():
            prepared = prepare(start.recipe, phases)
        origin = {**encoder_origin(recipe.encoder), **teacher_origin(recipe), **methods_origin(prepared)}
        start.check_data(prepared, origin)
        with processes.one_error_for_all():
            teachers = {} if start.finished else load_teachers(prepared)
        session = make_session(prepared, folder, start.device, teachers, start.checkpoint, processes)
        start.check_processes(session)
        with processes.one_error_for_all():
            start.write(prepared, origin)
        phases.end("session")
        return replace(running_from(start, prepared, session, keep_checkpoints), phases=phases)


@dataclass
class Running:
    """A run that is training: iterate `steps()`, then call `finish()`. Its folder is locked until then."""

    folder: Path
    prepared: Prepared
    session: Session
    device: torch.device
    lock: FolderLock
    changes: list[str] = field(default_factory=list)
    """What has changed since the run was started."""
    keep_checkpoints: bool = False
    gate: Gate | None = None
    """Compares the old tasks before and after, where tasks are added to a run."""
    summary: Summary | None = None
    """Of a run that had finished before, and has nothing left to train."""
    phases: Phases = field(default_factory=Phases)
    """Where the time goes, in this process."""
    processes: Processes = ALONE
    """The processes that torchrun has started for the run."""

    @property
    def is_main(self) -> bool:
        """Whether this process writes the run's files: the first of those that torchrun has started."""
        return self.session.processes.is_main

    def any_process(self, flag: bool) -> bool:
        """Whether the flag is set in any of the run's processes; each of them must ask, after the same step."""
        return self.session.processes.any(flag)

    @property
    def recipe(self) -> Recipe:
        return self.prepared.recipe

    @property
    def not_captured(self) -> str | None:
        """Why its steps are not replayed as CUDA graphs."""
        return self.session.not_captured

    def steps(self) -> Iterator[StepReport]:
        """Trains, one step for each item, and yields the step's report, with an evaluation where one was due.

        Call `save()` before you leave the loop early, so that the run can be resumed at this step; else it resumes at
        its last checkpoint.
        """
        if self.summary is None:
            before = self.session.progress.step_seconds
            yield from self.session.fit()
            parts = {"kernels": self.session.compile_seconds}
            parts["steps"] = self.session.progress.step_seconds - before
            if isinstance(self.session.evaluate, DevScorer):
                parts["evaluations"] = self.session.evaluate.seconds
            self.phases.end("checkpoints and records", parts)
            if self.session.captured is not None and self.session.processes.several:
                self.session.captured.graphs.clear()  # NCCL waits for the graphs that use a connection
            self.session.processes = self.session.processes.leave()

    def save(self) -> Path:
        """Writes a checkpoint of the current step, from which `resume` continues.

        Of several processes every one must call it, after the same step: they compare their weights, and the first one
        writes.
        """
        return self.session.save()

    def evaluate(self, split: str) -> EvalReport:
        """Scores the model as it is now on a split of every task."""
        return score_split(self.prepared, split, self.session.step).report

    def finish(self) -> Finished:
        """Loads the best weights, scores and predicts every split, and writes the model, the summary and the report.

        Of several processes the first one does this; the others wait for it, and return its scores and summary.
        """
        if not self.is_main:
            return self._finished_by_main()
        folder = RunFolder(self.folder)
        try:
            if self.summary is not None:
                finished = finish_again(folder, self.summary)
            else:
                finished = finish(folder, self.prepared, self.session, self.gate, self.keep_checkpoints, self.phases)
        except BaseException as error:
            self.processes.tell_others(f"!{error or type(error).__name__}", wait=False)
            raise
        self.lock.release()
        self.processes.tell_others(json.dumps(finished.summary.to_json(), ensure_ascii=False))
        return finished

    def _finished_by_main(self) -> Finished:
        told = self.processes.told_by_main()
        if told.startswith("!"):
            raise ErrorElsewhere(f"process 0 of {self.processes.count}: {told[1:]}")
        return finished_from(RunFolder(self.folder), summary_from(json.loads(told), "the summary of process 0"))

    def complete(self) -> Finished:
        """Trains to the last step and finishes the run."""
        for _ in self.steps():
            pass
        return self.finish()


def running_from(
    start: Start, prepared: Prepared, session: Session, keep_checkpoints: bool, gate: Gate | None = None
) -> Running:
    """The run that a start has led to; one that had finished before has its saved weights."""
    if start.finished is not None:
        if start.processes.is_main:  # the others need not see the folder
            session.model.load_state_dict(load_bundle(start.folder.model.path).model.state_dict())
        session.progress.step = start.finished.steps
    return Running(
        start.folder.path,
        prepared,
        session,
        start.device,
        start.lock,
        changes=start.changes,
        keep_checkpoints=keep_checkpoints,
        gate=gate,
        summary=start.finished,
        processes=start.processes,
    )


def rehearse(recipe: Recipe, trust_plugins: bool = False) -> Prepared:
    """Prepares a run up to its first step: every field of the recipe is used, nothing is trained or written.

    The recipe's device may be on another machine. Its teachers must exist, and are not loaded. `trust_plugins`
    remembers that its plug-ins may run.
    """
    use_code(recipe, trust_plugins)
    check_teachers(recipe)
    device = torch.device("cpu")
    set_threads(device, recipe.train.threads)
    prepared = prepare(replace(recipe, teachers={}))
    make_session(prepared, RunFolder(Path()), device)
    return prepared
