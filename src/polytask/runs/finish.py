"""The end of a run: scores, predictions, the model, the summary and the report; then the checkpoints are removed."""

import logging
import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from polytask.disk.hidden_folder import hidden_name
from polytask.evaluation.baselines import report_from
from polytask.evaluation.interference import read_interference
from polytask.evaluation.own_metrics import primary_of
from polytask.evaluation.transfer import read_transfer
from polytask.kinds.table import KINDS
from polytask.machine import peak_memory
from polytask.reports.interference import with_sentences
from polytask.reports.remarks import remarks
from polytask.runs.bundle import Bundle, load_bundle, save_bundle
from polytask.runs.calibrate import calibrate_tasks
from polytask.runs.folder import RunFolder
from polytask.runs.phases import Phases
from polytask.runs.prepare import Prepared, describe_task, shown_thresholds
from polytask.runs.report import write_card, write_report
from polytask.runs.resume import read_environment
from polytask.runs.score import DevScorer, SplitScores, choose_on_dev, predict_split, score_split
from polytask.runs.summary import Added, Best, Parameters, Summary, write_summary
from polytask.tasks.describe import baseline
from polytask.training.journal import read_start
from polytask.training.loop import Session
from polytask.types import EvalReport, UserError

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Verdict:
    """What a gate found: the old tasks before and after, and why the model must not be saved."""

    added: Added
    refused: str | None


Gate = Callable[[Mapping[str, SplitScores]], Verdict]
"""Compares the scores of the trained model, by split, with those of an earlier model."""


@dataclass(frozen=True)
class Finished:
    """A run that has finished."""

    folder: Path
    evaluations: Mapping[str, EvalReport]
    """By split: dev, and test if the recipe names test files."""
    summary: Summary
    removed_bytes: int = 0
    """The size of the checkpoints that were removed."""

    @property
    def report(self) -> Path:
        return RunFolder(self.folder).report

    @property
    def refused(self) -> str | None:
        """Why no model was saved, if the run forgot too much of its old tasks."""
        return self.summary.refused


def finish(
    folder: RunFolder,
    prepared: Prepared,
    session: Session,
    gate: Gate | None = None,
    keep_checkpoints: bool = False,
    phases: Phases | None = None,
) -> Finished:
    """Ends a run with its best weights. A model that the gate refuses is not saved, and keeps its checkpoints."""
    phases = phases or Phases()
    if not session.has_best_weights:
        session.load_best()
    step = session.best_step or 0
    kept = _kept_scores(session, step)
    scores = {"dev": choose_on_dev(prepared, score_split(prepared, "dev", step) if kept is None else kept)}
    if prepared.splits("test"):
        scores["test"] = score_split(prepared, "test", step)
    calibration = calibrate_tasks(prepared, scores)
    temperatures = {name: found["temperature"] for name, found in calibration.items()}
    prepared = replace(prepared, temperatures={**prepared.temperatures, **temperatures})
    phases.end("final scores")
    for split, scored in scores.items():
        predict_split(prepared, split, scored, folder)
    phases.end("predictions")
    verdict = None if gate is None else gate(scores)
    evaluations = {split: scored.report for split, scored in scores.items()}
    if isinstance(session.evaluate, DevScorer) and not evaluations["dev"].train:
        evaluations["dev"] = replace(evaluations["dev"], train=session.evaluate.score_training_rows(step))
    summary = replace(summarize(folder, prepared, session, evaluations, verdict), calibration=calibration)
    phases.end("data check")
    if summary.saved:
        save_bundle(prepared.bundle, folder.model.path)
    phases.end("saving the model")
    session.writer.wait()  # until then the run has not finished: it may have to be resumed
    phases.end("checkpoints and records")
    summary = replace(summary, phases=phases.seconds)
    write_summary(summary, folder.summary)
    with ThreadPoolExecutor(1) as thread:  # loading is mostly hashing and reading: meanwhile the pages are written
        loaded = thread.submit(load_bundle, folder.model.path) if summary.saved and not keep_checkpoints else None
        if summary.saved:
            write_card(folder, summary)
        write_report(folder.path)
    removed = 0 if loaded is None else remove_checkpoints(folder, loaded)
    return Finished(folder.path, evaluations, summary, removed)


def _kept_scores(session: Session, step: int) -> SplitScores | None:
    """The dev scores of the best weights, if they were the last to be evaluated and no others are mixed with them."""
    one_best, scorer = len(session.progress.bests) == 1, session.evaluate
    return scorer.kept(step) if one_best and isinstance(scorer, DevScorer) else None


def finish_again(folder: RunFolder, summary: Summary) -> Finished:
    """Writes the report of a finished run again."""
    write_report(folder.path)
    return finished_from(folder, summary)


def finished_from(folder: RunFolder, summary: Summary) -> Finished:
    """A run that another process has finished, now or earlier, with the scores in its summary."""
    step = summary.best.step or 0
    not_trained = [name for name, task in summary.tasks.items() if not task.trained]
    evaluations = {
        split: report_from({"step": step, "split": split, "tasks": tasks, "not_trained": not_trained})
        for split, tasks in summary.evaluations.items()
    }
    return Finished(folder.path, evaluations, summary)


def remove_checkpoints(folder: RunFolder, loaded: Future[Bundle]) -> int:
    """Removes the checkpoints of a finished run, if its model was loaded; returns their size in bytes.

    The folder is renamed first, so that a process that is killed leaves either all checkpoints or none.
    """
    if not folder.checkpoints.exists():
        return 0
    try:
        loaded.result()
    except UserError as error:
        log.warning("the checkpoints are kept, because the saved model cannot be loaded: %s", error)
        return 0
    size = sum(path.stat().st_size for path in folder.checkpoints.rglob("*") if path.is_file())
    hidden = hidden_name(folder.checkpoints)
    folder.checkpoints.rename(hidden)
    shutil.rmtree(hidden, ignore_errors=True)
    return size


# --- the summary ------------------------------------------------------------------------------------------------------
def summarize(
    folder: RunFolder,
    prepared: Prepared,
    session: Session,
    evaluations: Mapping[str, EvalReport],
    verdict: Verdict | None = None,
) -> Summary:
    recipe, progress = prepared.recipe, session.progress
    start = read_start(folder.metrics)
    before = None if start is None else report_from(start)
    stages = session.sampler.stages
    probes = None if recipe.train.interference_every is None else read_interference(folder.metrics)
    refused = None if verdict is None else verdict.refused
    return Summary(
        name=recipe.name,
        encoder=recipe.encoder if isinstance(recipe.encoder, str) else "untrained",
        encoder_revision=read_environment(folder).get("encoder_revision"),
        finished=True,
        steps=session.step,
        skipped_steps=progress.skipped,
        task_bests=_task_bests(session, evaluations["dev"]),
        epochs=session.step / session.steps_per_epoch,
        seconds=progress.seconds,
        examples_per_second=sum(session.feed.given.values()) / progress.step_seconds,
        peak_memory_bytes=peak_memory(session.model.device),
        device=str(session.model.device),
        best=_best(prepared, session, evaluations["dev"], before),
        parameters=Parameters(**prepared.model.budget()),
        tasks={name: describe_task(task, prepared) for name, task in prepared.tasks.items()},
        findings=tuple(asdict(finding) for finding in prepared.findings()),
        evaluations={split: asdict(report)["tasks"] for split, report in evaluations.items()},
        baselines=_baselines(prepared),
        training_rows={task: asdict(score) for task, score in evaluations["dev"].train.items()},
        start=None if before is None else asdict(before)["tasks"],
        untrained={} if before is None else before.baselines,
        remarks=(
            *(() if before is None else remarks(evaluations["dev"], before, recipe.train.select)),
            *threshold_remarks(prepared),
        ),
        interference=None if probes is None else with_sentences(probes),
        transfer=read_transfer(folder.metrics, stages) if stages else None,
        added=None if verdict is None else verdict.added,
        refused=refused,
        saved=refused is None,
        word_tags=None if prepared.word_tags is None else asdict(prepared.word_tags),
    )


def threshold_remarks(prepared: Prepared) -> list[str]:
    """Returns a sentence for each task whose thresholds were chosen on dev in this run."""
    sentences = []
    for name in prepared.drawn:
        thresholds = shown_thresholds(prepared, name)
        if thresholds and prepared.recipe.tasks[name].thresholds == "tuned":
            sentences.append(
                f"{name}: the threshold of each class was chosen on dev ({min(thresholds):.2f} to {max(thresholds):.2f}"
                "), so its dev scores are too good; a test file, or `thresholds: 0.5`, gives scores without this bias."
            )
    return sentences


def _best(prepared: Prepared, session: Session, dev: EvalReport, before: EvalReport | None) -> Best:
    """The values have the sign of the metric: what the session maximizes is negative where lower is better."""
    select, tasks = prepared.recipe.train.select, prepared.recipe.tasks
    task, _, metric = select.partition(".")
    if task == "last":
        return Best(session.best_step, select, None)
    if task in tasks:
        sign = dev.tasks[task].sign(metric or None)
    else:
        trained = [name for name in prepared.evaluated if tasks[name].trained]
        sign = -1 if not any(prepared.model.head(name).kind.has_predictions for name in trained) else 1
    start = None if before is None else sign * before.chosen(select)
    return Best(session.best_step, select, sign * session.best_value, start)


def _task_bests(session: Session, dev: EvalReport) -> dict[str, dict[str, Any]]:
    """Each task's best evaluation during training; the values have the sign of the metric."""
    left = session.progress.left
    return {
        task: {
            "metric": dev.tasks[task].primary,
            "value": dev.tasks[task].sign() * best.value,
            "step": best.step,
            "left": left.get(task),
        }
        for task, best in session.progress.task_bests.items()
    }


def _baselines(prepared: Prepared) -> dict[str, dict[str, Any]]:
    return {
        name: baseline(task.splits["dev"], task.labels, primary_of(task.spec, task.labels))
        for name, task in prepared.tasks.items()
        if KINDS[task.spec.kind].has_predictions
    }
