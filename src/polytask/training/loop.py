"""The training loop: a generator of step reports. Knows interfaces and settings; shows nothing and calls nobody back.

Whoever iterates (command line, notebook, test) decides what to show, and may stop at any step.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from polytask import seeds
from polytask.model import MultiTaskModel
from polytask.samplers.base import Sampler
from polytask.training import checkpoint as ckpt
from polytask.training.averages import RunningAverage, mean_weights
from polytask.training.feed import Feed
from polytask.training.journal import Journal
from polytask.training.objective import Objective
from polytask.training.probe import probe
from polytask.training.schedules import factor
from polytask.training.step import NothingMoved, StepOutcome, out_of_memory, take_step
from polytask.types import EvalReport, StepReport, TrainSettings, UserError

MOST_SKIPPED = 10
"""Steps in a row that may come to nothing (`train.on_nan: skip`) before the run stops."""


@dataclass
class Session:
    """Everything one run trains with, and how far it is."""

    model: MultiTaskModel
    optimizer: torch.optim.Optimizer
    objective: Objective
    sampler: Sampler
    feed: Feed
    settings: TrainSettings
    steps_per_epoch: int
    seed: int
    evaluate: Callable[[int], EvalReport]
    """Scores the model on every task's dev split, as of this step."""
    journal: Journal
    folder: Path
    """Where checkpoints go."""
    average: RunningAverage | None = None
    """Of the weights; it is evaluated and saved in their place."""
    step: int = 0
    bests: list[tuple[float, int]] = field(default_factory=list)
    """Value and step of the best evaluations, the best first; `settings.average_best` of them at most."""
    evaluations_since_best: int = 0
    seconds: float = 0.0
    """Spent training, evaluations included, over all starts of the run."""
    step_seconds: float = 0.0
    """Of those, spent in steps."""
    skipped: int = 0
    """Steps that came to nothing (`train.on_nan: skip`)."""
    skipped_in_a_row: int = 0

    @property
    def steps(self) -> int:
        return self.settings.epochs * self.steps_per_epoch

    @property
    def best_step(self) -> int | None:
        return self.bests[0][1] if self.bests else None

    @property
    def best_value(self) -> float:
        return self.bests[0][0] if self.bests else float("-inf")

    def save(self) -> Path:
        """Writes a checkpoint of now, and then removes old ones."""
        self.journal.sync()
        path = self.folder / f"{ckpt.STEP}{self.step}"
        extra = [("policy", self.objective.policy.state_dict())]
        extra += [(f"regularizer/{name}", r.state_dict()) for name, r in self.objective.regularizers.items()]
        tensors = {"model": self.model.state_dict(), "optimizer": ckpt.optimizer_tensors(self.optimizer)}
        if self.average is not None:
            tensors["average"] = self.average.weights
        state = {
            "step": self.step,
            "bests": self.bests,
            "evaluations_since_best": self.evaluations_since_best,
            "seconds": self.seconds,
            "step_seconds": self.step_seconds,
            "skipped": self.skipped,
            "skipped_in_a_row": self.skipped_in_a_row,
            "optimizer": type(self.optimizer).__name__,
            "sampler": self.sampler.state_dict(),
            "feed": self.feed.state_dict(),
        }
        needs = tuple(f"{ckpt.BEST}{step}" for _, step in self.bests)
        ckpt.write_checkpoint(path, ckpt.Checkpoint({**tensors, "methods": ckpt.prefixed(extra)}, state, needs))
        ckpt.remove_old(self.folder, self.settings.keep)
        return path

    def load(self, path: Path) -> None:
        """Goes on from a checkpoint, to the bit."""
        saved = ckpt.read_checkpoint(path)
        self.model.load_state_dict(saved.tensors["model"])
        ckpt.load_optimizer_tensors(self.optimizer, saved.tensors["optimizer"])
        self.objective.policy.load_state_dict(ckpt.owned(saved.tensors["methods"], "policy"))
        for name, regularizer in self.objective.regularizers.items():
            regularizer.load_state_dict(ckpt.owned(saved.tensors["methods"], f"regularizer/{name}"))
        state = saved.state
        if state["optimizer"] != type(self.optimizer).__name__:
            raise KeyError(f"its optimizer was {state['optimizer']}, not {type(self.optimizer).__name__}")
        self.sampler.load_state_dict(state["sampler"])
        self.feed.load_state_dict(state["feed"])
        self.step, self.bests = (
            state["step"],
            [(v, step) for v, step in state["bests"] if (self.folder / f"{ckpt.BEST}{step}").is_dir()],
        )
        self.seconds, self.step_seconds = state["seconds"], state["step_seconds"]
        self.skipped, self.skipped_in_a_row = state["skipped"], state["skipped_in_a_row"]
        if self.average is not None:
            self.average.load(saved.tensors["average"])
        self.evaluations_since_best = state["evaluations_since_best"]

    def load_best(self) -> None:
        """Puts the best weights back, or the mean of the best, for what comes after training."""
        found = [ckpt.read_checkpoint(self.folder / f"{ckpt.BEST}{step}").tensors["model"] for _, step in self.bests]
        if found:
            self.model.load_state_dict(found[0] if len(found) == 1 else mean_weights(found))


def fit(session: Session) -> Iterator[StepReport]:
    """Trains from the session's step to the end, or until patience runs out, one report a step."""
    session.journal.resumed_at = session.step
    with session.journal:
        if session.step == 0 and session.sampler.stages:
            _evaluate_the_start(session)
        while session.step < session.steps and not _out_of_patience(session):
            try:
                report = _step_and_record(session)
            except (RuntimeError, MemoryError) as error:
                if not out_of_memory(error):
                    raise
                raise UserError(
                    f"step {session.step}: out of memory on {session.model.device} when its gradient was there already "
                    "(in the update, an evaluation or a probe); lower max_length, or take a smaller model or optimizer"
                ) from error
            yield report


def _evaluate_the_start(session: Session) -> None:
    """What a task scores before anything is learned: what forward transfer is measured from."""
    started = time.perf_counter()
    session.journal.write_evaluation(session.evaluate(0))
    session.seconds += time.perf_counter() - started


def _step_and_record(session: Session) -> StepReport:
    """A step, with the evaluation and the checkpoint that are due after it."""
    settings = session.settings
    started = time.perf_counter()
    report = _one_step(session)
    session.step_seconds += report.seconds
    if settings.interference_every is not None and session.step % settings.interference_every == 0:
        progress = (session.step - 1) / session.steps
        found = probe(session.model, session.feed, session.objective, settings, session.step, progress)
        report = replace(report, interference=found)
    last = session.step == session.steps
    stage_ends = session.step in {stage.last for stage in session.sampler.stages}
    if session.step % (settings.evaluate_every or session.steps_per_epoch) == 0 or stage_ends or last:
        with session.average.standing_in(session.model) if session.average is not None else nullcontext():
            evaluation = session.evaluate(session.step)
            report = replace(report, evaluation=evaluation, best=_note_best(session, evaluation))
        last = last or _out_of_patience(session)
    session.sampler.observe(report)  # losses that are no numbers are not among those of the report
    session.objective.policy.observe(report)
    session.seconds += time.perf_counter() - started
    # The line first: what a checkpoint holds is always in the journal, and a resumed run drops what came after.
    session.journal.write(report)
    if session.step % (settings.save_every or session.steps_per_epoch) == 0 or last:
        report = replace(report, checkpoint=str(session.save()))
    return report


def _one_step(session: Session) -> StepReport:
    started = time.perf_counter()
    settings = session.settings
    before = session.sampler.state_dict(), session.feed.state_dict()
    session.step += 1
    # Dropout and every other draw inside the step come from (seed, step): nothing to save, nothing to lose.
    torch.manual_seed(seeds.derive(session.seed, "step", session.step))
    draws = session.sampler.next_step()
    scale = factor(session.step, session.steps, settings.warmup, settings.schedule)
    for group in session.optimizer.param_groups:
        group["lr"] = group["base_lr"] * scale
    try:
        outcome = take_step(
            session.model,
            session.optimizer,
            session.objective,
            settings,
            lambda: session.feed.next_batch(draws, session.objective.policy.needs_task_gradients),
            progress=(session.step - 1) / session.steps,
        )
        _count_skipped(session, outcome)
    except NothingMoved as error:
        session.sampler.load_state_dict(before[0])
        session.feed.load_state_dict(before[1])
        raise _stopped(session, error) from error
    for regularizer in session.objective.regularizers.values():
        regularizer.after_step(session.model, session.step)
    if session.average is not None:
        session.average.update(session.model, session.step)
    return StepReport(
        step=session.step,
        steps=session.steps,
        epoch=(session.step - 1) // session.steps_per_epoch + 1,
        losses=_numbers(outcome.losses),
        penalties=_numbers(outcome.penalties),
        learning_rate=max(group["lr"] for group in session.optimizer.param_groups),
        gradient_norm=outcome.gradient_norm,
        examples=outcome.examples,
        tokens=outcome.tokens,
        seconds=time.perf_counter() - started,
        skipped=outcome.skipped,
    )


def _count_skipped(session: Session, outcome: StepOutcome) -> None:
    if outcome.skipped is not None and session.skipped_in_a_row == MOST_SKIPPED - 1:
        raise NothingMoved(f"{outcome.skipped}; so were the {MOST_SKIPPED - 1} steps before it (train.on_nan: skip)")
    session.skipped += outcome.skipped is not None
    session.skipped_in_a_row = 0 if outcome.skipped is None else session.skipped_in_a_row + 1


def _stopped(session: Session, error: NothingMoved) -> UserError:
    """Saves the run as it was before a step that came to nothing; what to say of it."""
    failed, session.step = session.step, session.step - 1
    if session.step == 0:
        return UserError(f"step {failed}: {error}")
    path = session.folder / f"{ckpt.STEP}{session.step}"
    if not path.exists():
        session.save()
    return UserError(f"step {failed}: {error}. The run as it was before is in {path}: --resume goes on from there")


def _numbers(values: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in values.items() if math.isfinite(value)}


def _note_best(session: Session, evaluation: EvalReport) -> bool:
    """Keeps the weights of the best evaluations; whether this one is the best of all. By `last` none is."""
    value = evaluation.chosen(session.settings.select)
    best = value > session.best_value
    session.evaluations_since_best = 0 if best else session.evaluations_since_best + 1
    # Stable: of two equal evaluations the earlier one stays ahead.
    ranked = sorted([*session.bests, (value, session.step)], key=lambda entry: -entry[0])
    session.bests = ranked[: session.settings.average_best]
    if (value, session.step) in session.bests:
        weights = {"model": session.model.state_dict()}
        saved = ckpt.Checkpoint(weights, {"step": session.step, "value": value})
        ckpt.write_checkpoint(session.folder / f"{ckpt.BEST}{session.step}", saved)
    return best and session.settings.select != "last"


def _out_of_patience(session: Session) -> bool:
    return session.settings.patience is not None and session.evaluations_since_best >= session.settings.patience
