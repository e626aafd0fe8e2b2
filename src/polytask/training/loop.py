"""The training loop: a generator of step reports. Knows interfaces and settings; shows nothing and calls nobody back.

Whoever iterates (command line, notebook, test) decides what to show, and may stop at any step.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from polytask import seeds
from polytask.model import MultiTaskModel
from polytask.samplers.base import Sampler
from polytask.training import checkpoint as ckpt
from polytask.training.averages import RunningAverage, mean_weights
from polytask.training.captured import CapturedSteps
from polytask.training.feed import Feed
from polytask.training.journal import Journal
from polytask.training.objective import Objective
from polytask.training.probe import probe
from polytask.training.schedules import factor
from polytask.training.step import StepFailed, StepOutcome, out_of_memory, take_step
from polytask.types import EvalReport, StepReport, TrainSettings, UserError

MOST_SKIPPED = 10
"""Steps in a row that may come to nothing (`train.on_nan: skip`) before the run stops."""


@dataclass(frozen=True)
class Begun:
    """A step that is under way."""

    step: int
    outcome: Callable[[], StepOutcome]
    """Takes the step, or waits for its end."""
    learning_rates: dict[str, float]
    started: float
    before: tuple[dict[str, Any], dict[str, Any]]
    """What sampler and feed were."""
    late: bool = False
    """What it came to may be asked for when the next one is under way."""


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
    captured: CapturedSteps | None = None
    """Takes the steps, where they can be captured."""
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
    under_way: Begun | None = None
    """The step that was begun and not waited for; `step` counts it."""
    unseen: list[StepReport] = field(default_factory=list)
    """Reports that nobody has been given."""
    last_end: float = 0.0
    """When the last step ended, by the process's own clock."""

    @property
    def steps(self) -> int:
        return self.settings.epochs * self.steps_per_epoch

    @property
    def best_step(self) -> int | None:
        return self.bests[0][1] if self.bests else None

    @property
    def best_value(self) -> float:
        return self.bests[0][0] if self.bests else float("-inf")

    def note(self, report: StepReport) -> None:
        """Losses that are no numbers are not among those of the report."""
        self.sampler.observe(report)
        self.objective.policy.observe(report)
        self.journal.write(report)

    def settle(self) -> None:
        """Waits for the step that is under way, if one is, and writes its line."""
        begun, self.under_way = self.under_way, None
        if begun is not None:
            report = _ended(self, begun)
            self.note(report)
            self.unseen.append(report)

    def save(self) -> Path:
        """Writes a checkpoint of now, and then removes old ones."""
        self.settle()
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
    """Trains from the session's step to the end, or until patience runs out, one report a step.

    Where steps are captured, a step's report comes when the next one is under way, so that the device never waits.
    """
    session.journal.resumed_at = session.step
    with session.journal:
        if session.step == 0:
            _evaluate_the_start(session)
        try:
            while session.step < session.steps and not _out_of_patience(session):
                yield from _next_reports(session)
        finally:
            session.settle()  # whoever iterates may stop at any step


def _evaluate_the_start(session: Session) -> None:
    """Scores the model before the first step, to compare with; never counts as the best evaluation.

    Evaluation draws no random numbers, so training is bit-identical with and without it.
    """
    started = time.perf_counter()
    try:
        session.journal.write_evaluation(session.evaluate(0))
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
        raise UserError(
            f"out of memory on {session.model.device} in the evaluation before the first step; lower max_length, or "
            "take a smaller model"
        ) from error
    session.seconds += time.perf_counter() - started


def _next_reports(session: Session) -> list[StepReport]:
    """Begins a step, and gives the reports of what has ended since."""
    try:
        begun = _begin(session)
        session.settle()
        session.under_way = begun
        if not begun.late or _due(session):
            session.under_way = None
            session.unseen.append(_with_what_is_due(session, _ended(session, begun)))
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
        raise UserError(
            f"step {session.step}: out of memory on {session.model.device} when its gradient was there already "
            "(in the update, an evaluation or a probe); lower max_length, or take a smaller model or optimizer"
        ) from error
    reports, session.unseen = session.unseen, []
    return reports


def _begin(session: Session) -> Begun:
    """Draws the step and starts it, if it can be started without being waited for."""
    started = time.perf_counter()
    settings, objective = session.settings, session.objective
    before = session.sampler.state_dict(), session.feed.state_dict()
    session.step += 1
    # Dropout and every other draw inside the step come from (seed, step): nothing to save, nothing to lose.
    seeds.seed_torch(seeds.derive(session.seed, "step", session.step), session.model.device)
    draws = session.sampler.next_step()
    scale = factor(session.step, session.steps, settings.warmup, settings.schedule)
    for group in session.optimizer.param_groups:
        group["lr"] = group["base_lr"] * scale
    rates = _learning_rates(session.optimizer)
    if session.captured is not None:
        outcome = session.captured.begin(session.feed.next_batch(draws, steady=True).together)
        # An average follows the weights step by step, and a step that is skipped must be known before the next.
        late = session.average is None and settings.on_nan == "stop"
        return Begun(session.step, outcome, rates, started, before, late)
    progress = (session.step - 1) / session.steps

    def take() -> StepOutcome:
        per_task_gradients = objective.policy.needs_task_gradients
        next_batch = partial(session.feed.next_batch, draws, per_task_gradients)
        return take_step(session.model, session.optimizer, objective, settings, next_batch, progress)

    return Begun(session.step, take, rates, started, before)


def _learning_rates(optimizer: torch.optim.Optimizer) -> dict[str, float]:
    """The highest rate of each part that learns; layer-wise decay makes the encoder's lower layers learn slower."""
    found: dict[str, float] = {}
    for group in optimizer.param_groups:
        for part in group.get("parts", ()):
            found[part] = max(found.get(part, 0.0), group["lr"])
    return {part: found[part] for part in ("encoder", "adapter", "heads", "policy") if part in found}


def _due(session: Session) -> bool:
    """Whether something comes after this step that wants the weights as they are then."""
    return _evaluation_due(session) or _probe_due(session) or _checkpoint_due(session)


def _evaluation_due(session: Session) -> bool:
    every = session.settings.evaluate_every or session.steps_per_epoch
    stage_ends = session.step in {stage.last for stage in session.sampler.stages}
    return session.step % every == 0 or stage_ends or session.step == session.steps


def _probe_due(session: Session) -> bool:
    every = session.settings.interference_every
    return every is not None and session.step % every == 0


def _checkpoint_due(session: Session) -> bool:
    every = session.settings.save_every or session.steps_per_epoch
    return session.step % every == 0 or session.step == session.steps or _out_of_patience(session)


def _ended(session: Session, begun: Begun) -> StepReport:
    """What a step came to, as soon as it has come to it."""
    try:
        outcome = begun.outcome()
        _count_skipped(session, outcome)
    except StepFailed as error:
        session.step = begun.step
        session.sampler.load_state_dict(begun.before[0])
        session.feed.load_state_dict(begun.before[1])
        raise _stopped(session, error) from error
    for regularizer in session.objective.regularizers.values():
        regularizer.after_step(session.model, begun.step)
    if session.average is not None:
        session.average.update(session.model, begun.step)
    now = time.perf_counter()
    seconds = now - max(begun.started, session.last_end)
    session.last_end = now
    session.step_seconds += seconds
    session.seconds += seconds
    return StepReport(
        step=begun.step,
        steps=session.steps,
        epoch=(begun.step - 1) // session.steps_per_epoch + 1,
        losses=_numbers(outcome.losses),
        penalties=_numbers(outcome.penalties),
        learning_rate=next(iter(begun.learning_rates.values())),
        learning_rates=begun.learning_rates,
        gradient_norm=outcome.gradient_norm,
        examples=outcome.examples,
        tokens=outcome.tokens,
        seconds=seconds,
        skipped=outcome.skipped,
    )


def _with_what_is_due(session: Session, report: StepReport) -> StepReport:
    """The probe, the evaluation and the checkpoint that come after a step."""
    started = time.perf_counter()
    if _probe_due(session):
        progress = (session.step - 1) / session.steps
        found = probe(session.model, session.feed, session.objective, session.settings, session.step, progress)
        report = replace(report, interference=found)
    if _evaluation_due(session):
        with session.average.standing_in(session.model) if session.average is not None else nullcontext():
            evaluation = session.evaluate(session.step)
            report = replace(report, evaluation=evaluation, best=_note_best(session, evaluation))
    session.seconds += time.perf_counter() - started
    # The line first: what a checkpoint holds is always in the journal, and a resumed run drops what came after.
    session.note(report)
    if _checkpoint_due(session):
        report = replace(report, checkpoint=str(session.save()))
    return report


def _count_skipped(session: Session, outcome: StepOutcome) -> None:
    if outcome.skipped is not None and session.skipped_in_a_row == MOST_SKIPPED - 1:
        raise StepFailed(f"{outcome.skipped}; so were the {MOST_SKIPPED - 1} steps before it (train.on_nan: skip)")
    session.skipped += outcome.skipped is not None
    session.skipped_in_a_row = 0 if outcome.skipped is None else session.skipped_in_a_row + 1


def _stopped(session: Session, error: StepFailed) -> UserError:
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
