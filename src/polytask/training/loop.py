"""The training loop: a generator of step reports. Knows interfaces and settings; shows nothing and calls nobody back.

The caller (command line, notebook, test) decides what to show, and may stop after any step.
"""

import math
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from polytask import seeds
from polytask.policies.base import Policy
from polytask.regularizers.base import Regularizer
from polytask.training import checkpoint as ckpt
from polytask.training.feed import Batch
from polytask.training.probe import probe
from polytask.training.room import measure_room
from polytask.training.schedules import factor
from polytask.training.state import TrainingState
from polytask.training.step import (
    MemoryRanOut,
    StepFailed,
    StepOutcome,
    StepTotals,
    differentiate,
    out_of_memory,
    take_step,
)
from polytask.types import StepReport, UserError

MOST_SKIPPED = 10
"""Skipped steps in a row (`train.on_nan: skip`) after which the run stops."""


@dataclass(frozen=True)
class DrawnStep:
    """The batches of the next step, which has not been started."""

    step: int
    batches: Sequence[Callable[[], Batch]]
    started: float
    before: tuple[dict[str, Any], dict[str, Any]]
    """The states of sampler and feed before the step."""


@dataclass(frozen=True)
class StartedStep:
    """A step that has been started, and whose outcome has not been read."""

    drawn: DrawnStep
    outcome: Callable[[], StepOutcome]
    """Takes the step, or waits for its end."""
    learning_rates: dict[str, float]

    @property
    def step(self) -> int:
        return self.drawn.step


@dataclass
class Session(TrainingState):
    """The training loop of one run: iterate `fit()`."""

    running_step: StartedStep | None = None
    """The step that was started and not waited for; `step` counts it."""
    ended_step: StepReport | None = None
    """The report of a step that has ended and has no line in the journal: it is written while the next step runs."""
    pending_reports: list[StepReport] = field(default_factory=list)
    """Reports that have not been yielded."""
    last_end: float = 0.0
    """When the last step ended, by time.perf_counter()."""
    compile_seconds: float = 0.0
    """The time that compiling and loading kernels took before the first step."""

    def fit(self) -> Iterator[StepReport]:
        """Trains to the last step, or until patience runs out, and yields one report for each step.

        A captured step's losses are read after the next step is launched, so that the device never waits; its report
        comes one step later.
        """
        self.journal.resumed_at = self.step
        with self.journal:
            self._compile_kernels()
            if self.step == 0:
                self._evaluate_start()
            finished = False
            try:
                while self.step < self.steps and not self._out_of_patience():
                    yield from self._next_reports()
                finished = True
            finally:  # the caller may stop after any step
                self.wait()
                if not finished:
                    self.writer.wait()

    def wait(self) -> None:
        """Waits for the running step, if there is one, and writes its line to the journal."""
        self._end_running_step()
        report, self.ended_step = self.ended_step, None
        if report is not None:
            self._record(report)
            self.pending_reports.append(report)

    def _end_running_step(self) -> None:
        started, self.running_step = self.running_step, None
        if started is not None:
            self.ended_step = self._end(started)

    def save(self) -> Path:
        """Writes a checkpoint of the current step, waits until it is complete, and removes old ones."""
        path = self._start_saving()
        self.writer.wait()
        return path

    def _start_saving(self) -> Path:
        self.wait()
        if self.processes.several:
            self.processes.check_equal(f"weights after step {self.step}", checksum(self.model.parameters()))
        self.journal.sync()
        return self.write_checkpoint()

    def _compile_kernels(self) -> None:
        """Compiles the kernels of captured steps on the first batch, which the first step draws again."""
        if self.captured is None or self.step == self.steps:
            return
        started = time.perf_counter()
        drawn = self._draw()
        try:
            self.captured.compile_kernels(drawn.batches[0]())
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error):  # the first step reports it
                raise
        self._undo(drawn)
        self.compile_seconds = time.perf_counter() - started
        self.progress.seconds += self.compile_seconds

    def _evaluate_start(self) -> None:
        """Scores the model before the first step, for comparison; never counts as the best evaluation.

        Evaluation draws no random numbers, so training is bit-identical with and without it.
        """
        started = time.perf_counter()
        try:
            self.journal.write_evaluation(self.evaluate(0))
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error):
                raise
            raise UserError(
                f"out of memory on {self.model.device} in the evaluation before the first step; lower max_length, or "
                "use a smaller model"
            ) from error
        self.progress.seconds += time.perf_counter() - started

    def _next_reports(self) -> list[StepReport]:
        """Starts a step, and returns the reports of the steps that have ended since the last call."""
        try:
            drawn = self._draw()
            if self.running_step is not None and not self._read_later(self.running_step.step):
                self._end_running_step()
            started = self._start(drawn)
            self.wait()
            self.running_step = started
            if self.captured is None or self._something_due():
                self.running_step = None
                self.pending_reports.append(self._after_step(self._end(started)))
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error):
                raise
            raise UserError(
                f"step {self.step}: out of memory on {self.model.device} after its gradient was computed (in the "
                "update, an evaluation or a probe); lower max_length, or use a smaller model or optimizer"
            ) from error
        reports, self.pending_reports = self.pending_reports, []
        return reports

    # --- one step -----------------------------------------------------------------------------------------------------
    def _draw(self) -> DrawnStep:
        """Draws the next step's tasks and examples; packs them if the step is captured: the GPU is busy meanwhile."""
        now = time.perf_counter()
        before = self.sampler.state_dict(), self.feed.state_dict()
        self.progress.step += 1
        draws = self.sampler.next_step()
        static_shape, several = self.captured is not None, self.objective.policy.needs_task_gradients
        next_batch = partial(self.feed.next_batch, draws, several, static_shape)
        if self.captured is None or several or self.settings.accumulate > 1:
            return DrawnStep(self.step, [next_batch] * self.settings.accumulate, now, before)
        batch = next_batch()
        _ = batch.together  # a batch is packed when its stream is first used: now
        return DrawnStep(self.step, [lambda: batch], now, before)

    def _read_later(self, step: int) -> bool:
        """Whether the next step may be launched before the outcome of this one is known.

        Not if something changes between the two: some regularizers need the weights of every step, some policies its
        losses, and a skipped step must be known before the next.
        """
        observed = type(self.objective.policy).observe is not Policy.observe
        acts = any(regularizer.acts_after(step) for regularizer in self._acting())
        return self.settings.on_nan == "stop" and not observed and not acts

    def _start(self, drawn: DrawnStep) -> StartedStep:
        """Launches the step if it is captured; otherwise it is taken when its outcome is read."""
        # Dropout and all other random draws of a step come from (seed, step), so there is no generator to save.
        self._seed_step(drawn.step)
        scale = factor(drawn.step, self.steps, self.settings.warmup, self.settings.schedule)
        for group in self.optimizer.param_groups:
            group["lr"] = group["base_lr"] * scale
        rates, done = learning_rates(self.optimizer), self._done(drawn.step)
        if self.captured is not None:
            batches = (batch() for batch in drawn.batches)
            return StartedStep(drawn, self.captured.begin(batches, done, drawn.step), rates)
        waiting = iter(drawn.batches)
        outcome = partial(
            take_step,
            self.model,
            self.optimizer,
            self.objective,
            self.settings,
            lambda: next(waiting)(),
            done,
            self.processes,
        )
        return StartedStep(drawn, outcome, rates)

    def _seed_step(self, step: int) -> None:
        """Seeds dropout: differently in each process. What all processes draw alike is drawn as by a single one."""
        seed, division = seeds.derive(self.seed, "step", step), self.feed.division
        if division is not None:
            division.random.seed(seed)
            seed = seeds.derive(self.seed, "step", step, "process", self.processes.rank)
        seeds.seed_torch(seed, self.model.device)

    def _done(self, step: int) -> float:
        """The share of the run's steps that come before this one."""
        return (step - 1) / self.steps

    def _end(self, started: StartedStep) -> StepReport:
        """Waits for a step, and reports its outcome."""
        try:
            outcome = started.outcome()
            self._count_skipped(outcome)
        except StepFailed as error:
            self._undo(started.drawn)
            raise self._stopped(self._with_room(error)) from error
        for regularizer in self._acting():
            regularizer.after_step(self.model, started.step)
        if self.average is not None and self.captured is None:
            self.average.update(started.step)
        now = time.perf_counter()
        seconds = now - max(started.drawn.started, self.last_end)
        self.last_end = now
        self.progress.step_seconds += seconds
        self.progress.seconds += seconds
        report = StepReport(
            step=started.step,
            steps=self.steps,
            epoch=(started.step - 1) // self.steps_per_epoch + 1,
            losses=finite(outcome.losses),
            penalties=finite(outcome.penalties),
            learning_rate=next(iter(started.learning_rates.values())),
            learning_rates=started.learning_rates,
            gradient_norm=outcome.gradient_norm,
            examples=outcome.examples,
            tokens=outcome.tokens,
            seconds=seconds,
            skipped=outcome.skipped,
        )
        self.objective.policy.observe(report)
        return report

    def _acting(self) -> list[Regularizer]:
        """The regularizers that the host calls after a step: those whose followers a captured step moves are not."""
        regularizers = self.objective.regularizers.values()
        return [one for one in regularizers if self.captured is None or one.followers is None]

    def _undo(self, drawn: DrawnStep) -> None:
        """Forgets that a step was drawn."""
        self.progress.step = drawn.step - 1
        sampler, feed = drawn.before
        self.sampler.load_state_dict(sampler)
        self.feed.load_state_dict(feed)

    def _count_skipped(self, outcome: StepOutcome) -> None:
        progress = self.progress
        if outcome.skipped is None:
            progress.skipped_in_a_row = 0
        elif progress.skipped_in_a_row == MOST_SKIPPED - 1:
            raise StepFailed(f"{outcome.skipped}; so were the {MOST_SKIPPED - 1} steps before it (train.on_nan: skip)")
        else:
            progress.skipped += 1
            progress.skipped_in_a_row += 1

    def _with_room(self, error: StepFailed) -> StepFailed:
        """Adds to the error of a step that ran out of memory how many tokens would fit."""
        if not isinstance(error, MemoryRanOut) or self.processes.several:
            return error
        if self.captured is not None:
            self.captured.graphs.clear()  # they hold memory
        if error.__cause__ is not None:  # so do the variables of the functions in which memory ran out
            traceback.clear_frames(error.__cause__.__traceback__)
        fits = measure_room(self.model.device, self._part_of_a_batch, self._differentiate, self.optimizer)
        return error if fits is None else StepFailed(f"{error}. About {fits:,} tokens a batch would fit")

    def _part_of_a_batch(self, share: int) -> Batch:
        """A batch of a `share`-th of the next step's examples, which stay the next step's."""
        before = self.sampler.state_dict(), self.feed.state_dict()
        draws = [replace(draw, count=max(draw.count // share, 1)) for draw in self.sampler.next_step()]
        batch = self.feed.next_batch(draws, self.objective.policy.needs_task_gradients)
        self.sampler.load_state_dict(before[0])
        self.feed.load_state_dict(before[1])
        return batch

    def _differentiate(self, batch: Batch) -> StepTotals:
        return differentiate(self.model, self.objective, self.settings, [batch], self._done(self.step + 1))

    def _stopped(self, error: StepFailed) -> UserError:
        """Saves the run as it was before the step that failed; returns the error to raise."""
        failed = self.step + 1
        # Memory runs out in one process: the others compute the step, and no checkpoint can be agreed on.
        if self.step == 0 or (isinstance(error, MemoryRanOut) and self.processes.several):
            return UserError(f"step {failed}: {error}")
        path = self.checkpoints / f"{ckpt.STEP}{self.step}"
        self.writer.wait()
        if not self.processes.any(self.processes.is_main and path.exists()):
            self.save()
        return UserError(f"step {failed}: {error}. The run before this step is saved in {path}; --resume continues it")

    # --- after a step -------------------------------------------------------------------------------------------------
    def _after_step(self, report: StepReport) -> StepReport:
        """The probe, the evaluation and the checkpoint that are due after a step."""
        started = time.perf_counter()
        if self._probe_due():
            step, done = self.step, self._done(self.step)
            interference = probe(self.model, self.feed, self.objective, self.settings, step, done)
            report = replace(report, interference=interference)
        if self._evaluation_due():
            with self.average.swapped_in(self.model) if self.average is not None else nullcontext():
                evaluation = self.evaluate(self.step)
                report = replace(report, evaluation=evaluation, best=self.keep_if_best(evaluation))
                report = replace(report, left=self.note_task_scores(evaluation))
        self.progress.seconds += time.perf_counter() - started
        # Before the checkpoint: every step in a checkpoint has its line, and a resumed run drops the later lines.
        self._record(report)
        if self._checkpoint_due():
            report = replace(report, checkpoint=str(self._start_saving()))
        return report

    def _record(self, report: StepReport) -> None:
        self.sampler.observe(report)
        self.journal.write(report)

    def _something_due(self) -> bool:
        """Whether something follows this step that needs the weights as they are after it."""
        return self._evaluation_due() or self._probe_due() or self._checkpoint_due()

    def _evaluation_due(self) -> bool:
        every = self.settings.evaluate_every or self.steps_per_epoch
        stage_ends = self.step in {stage.last for stage in self.sampler.stages}
        return self.step % every == 0 or stage_ends or self.step == self.steps

    def _probe_due(self) -> bool:
        every = self.settings.interference_every
        return every is not None and self.step % every == 0

    def _checkpoint_due(self) -> bool:
        every = self.settings.save_every or self.steps_per_epoch
        return self.step % every == 0 or self.step == self.steps or self._out_of_patience()

    def _out_of_patience(self) -> bool:
        patience = self.settings.patience
        if self.settings.stop == "per_task":
            return not self.tasks_left
        return patience is not None and self.progress.evaluations_since_best >= patience


def checksum(tensors: Iterable[torch.Tensor]) -> str:
    """A number that almost always differs if a bit of the tensors does."""
    bits = [t.detach().flatten().view(torch.int32).sum(dtype=torch.int64) for t in tensors if t.element_size() >= 4]
    return f"{int(torch.stack(bits).sum().item()):x}"


def learning_rates(optimizer: torch.optim.Optimizer) -> dict[str, float]:
    """The highest rate of each part that learns; with layer-wise decay the encoder's lower layers have lower rates."""
    highest: dict[str, float] = {}
    for group in optimizer.param_groups:
        for part in group.get("parts", ()):
            highest[part] = max(highest.get(part, 0.0), group["lr"])
    return {part: highest[part] for part in ("encoder", "adapter", "heads", "policy") if part in highest}


def finite(values: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in values.items() if math.isfinite(value)}
