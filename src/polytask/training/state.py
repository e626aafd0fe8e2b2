"""What a run trains with and how far it has come, with checkpoints of both. Knows interfaces, no concrete method."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from polytask.model import MultiTaskModel
from polytask.processes import ALONE, Processes
from polytask.samplers.base import Sampler
from polytask.settings import TrainSettings
from polytask.training import checkpoint as ckpt
from polytask.training.averages import RunningAverage, mean_weights
from polytask.training.captured import CapturedSteps
from polytask.training.checkpoint_writer import CheckpointWriter
from polytask.training.feed import Feed
from polytask.training.journal import Journal
from polytask.training.objective import Objective
from polytask.types import EvalReport


class TaskBest(NamedTuple):
    """A task's best evaluation by its own primary metric."""

    value: float
    """Negated where lower is better."""
    step: int
    evaluations_since: int


@dataclass
class Progress:
    """How far a run has come: the numbers that a checkpoint keeps."""

    step: int = 0
    """The last step that was started."""
    bests: list[tuple[float, int]] = field(default_factory=list)
    """Value and step of the best evaluations, best first; at most `train.average_best` of them."""
    evaluations_since_best: int = 0
    seconds: float = 0.0
    """Training time, evaluations included, over all starts of the run."""
    step_seconds: float = 0.0
    """The part of it that steps took."""
    skipped: int = 0
    """Steps that changed no weights because of a NaN or infinite value (`train.on_nan: skip`)."""
    skipped_in_a_row: int = 0
    task_bests: dict[str, TaskBest] = field(default_factory=dict)
    left: dict[str, int] = field(default_factory=dict)
    """The step after which each task has left the sampler (`train.stop: per_task`)."""


NEW_FIELDS = ("task_bests", "left")
"""Fields of `Progress` that checkpoints of earlier versions lack."""


class CheckpointMismatch(RuntimeError):
    """A checkpoint whose content does not fit the session: it is of another recipe, or of an earlier version."""

    def __init__(self, reason: object, earlier_options: Mapping[str, Any]) -> None:
        super().__init__(str(reason))
        self.earlier_options = earlier_options
        """What the options of the adapter were in versions that did not have them."""


@dataclass
class TrainingState:
    """Everything that one run trains with, and its progress."""

    model: MultiTaskModel
    optimizer: torch.optim.Optimizer
    objective: Objective
    sampler: Sampler
    feed: Feed
    settings: TrainSettings
    steps_per_epoch: int
    seed: int
    evaluate: Callable[[int], EvalReport]
    """Scores the model on the dev split of every task; the argument is the step."""
    journal: Journal
    checkpoints: Path
    """The folder of the checkpoints."""
    average: RunningAverage | None = None
    """The moving average of the weights, which is evaluated and saved in their place."""
    captured: CapturedSteps | None = None
    """Runs the steps as CUDA graphs, where they can be captured."""
    not_captured: str | None = None
    """Why the steps are not captured."""
    drawn: tuple[str, ...] = ()
    """The tasks that steps are drawn from."""
    processes: Processes = ALONE
    """The processes that divide the steps."""
    processes_before: int | None = None
    """The number of processes that wrote the checkpoint from which training continues."""
    writer: CheckpointWriter = field(default_factory=CheckpointWriter)
    progress: Progress = field(default_factory=Progress)
    tasks_left: bool = True
    """Whether the sampler has tasks to draw; not if all have stopped (`train.stop: per_task`)."""

    @property
    def step(self) -> int:
        return self.progress.step

    @property
    def steps(self) -> int:
        return self.settings.epochs * self.steps_per_epoch

    @property
    def best_step(self) -> int | None:
        return self.progress.bests[0][1] if self.progress.bests else None

    @property
    def best_value(self) -> float:
        return self.progress.bests[0][0] if self.progress.bests else float("-inf")

    def write_checkpoint(self) -> Path:
        """Writes a checkpoint of the current step, then removes old ones; `writer.wait` waits until it is complete."""
        path = self.checkpoints / f"{ckpt.STEP}{self.step}"
        methods = [("policy", self.objective.policy.state_dict())]
        methods += [(f"regularizer/{name}", r.state_dict()) for name, r in self.objective.regularizers.items()]
        tensors = {"model": self.model.state_dict(), "optimizer": ckpt.optimizer_tensors(self.optimizer)}
        if self.average is not None:
            tensors["average"] = self.average.weights
        state = {
            **asdict(self.progress),
            "optimizer": type(self.optimizer).__name__,
            "sampler": self.sampler.state_dict(),
            "feed": self.feed.state_dict(),
            "processes": self.processes.count,
        }
        needs = tuple(self._best(step).name for _, step in self.progress.bests)
        saved = ckpt.Checkpoint({**tensors, "methods": ckpt.prefixed(methods)}, state, needs)
        self.writer.write(path, saved, partial(ckpt.remove_old, self.checkpoints, self.settings.keep))
        return path

    def load(self, path: Path) -> None:
        """Continues from a checkpoint, bit-identically; a CheckpointMismatch if it is of something else."""
        saved = None
        if self.processes.is_main:
            saved = ckpt.read_checkpoint(path)
            # With --allow-change a run may continue without best models that are damaged.
            bests = [best for best in saved.state["bests"] if self._best(best[1]).is_dir()]
            saved = replace(saved, state={**saved.state, "bests": bests})
        saved = ckpt.from_main(saved, self.processes)
        try:
            self._load(saved)
        except (KeyError, TypeError, RuntimeError) as error:
            raise CheckpointMismatch(error, self.model.adapter.earlier_options) from error

    def _load(self, saved: ckpt.Checkpoint) -> None:
        state = saved.state
        self.model.load_state_dict(saved.tensors["model"])
        ckpt.load_optimizer_tensors(self.optimizer, saved.tensors["optimizer"])
        self.objective.policy.load_state_dict(ckpt.owned(saved.tensors["methods"], "policy"))
        for name, regularizer in self.objective.regularizers.items():
            regularizer.load_state_dict(ckpt.owned(saved.tensors["methods"], f"regularizer/{name}"))
        if state["optimizer"] != type(self.optimizer).__name__:
            raise KeyError(f"the checkpoint's optimizer is {state['optimizer']}, not {type(self.optimizer).__name__}")
        self.sampler.load_state_dict(state["sampler"])
        self.feed.load_state_dict(state["feed"])
        if self.average is not None:
            self.average.load(saved.tensors["average"])
        self.processes_before = int(state.get("processes", 1))
        names = [f.name for f in fields(Progress) if f.name in state or f.name not in NEW_FIELDS]
        self.progress = Progress(**{name: state[name] for name in names})
        self.progress.bests = [(value, step) for value, step in self.progress.bests]
        self.progress.task_bests = {task: TaskBest(*best) for task, best in self.progress.task_bests.items()}
        if self.progress.left:
            self.tasks_left = self.sampler.leave_out(self.progress.left)

    def keep_if_best(self, evaluation: EvalReport) -> bool:
        """Saves the weights if this evaluation is among the best; True if it is the best of all (never with `last`)."""
        progress = self.progress
        value = evaluation.chosen(self.settings.select)
        best = value > self.best_value
        progress.evaluations_since_best = 0 if best else progress.evaluations_since_best + 1
        # The sort is stable: of two equal evaluations the earlier one stays first.
        ranked = sorted([*progress.bests, (value, self.step)], key=lambda entry: -entry[0])
        progress.bests = ranked[: self.settings.average_best]
        if (value, self.step) in progress.bests:
            saved = ckpt.Checkpoint({"model": self.model.state_dict()}, {"step": self.step, "value": value})
            self.writer.write(self._best(self.step), saved)
        return best and self.settings.select != "last"

    def note_task_scores(self, evaluation: EvalReport) -> tuple[str, ...]:
        """Notes each task's best evaluation. With `train.stop: per_task`, stops tasks and returns their names."""
        progress, patience = self.progress, self.settings.patience
        for task, score in evaluation:
            best = progress.task_bests.get(task)
            if best is None or score.signed() > best.value:
                progress.task_bests[task] = TaskBest(score.signed(), evaluation.step, 0)
            else:
                progress.task_bests[task] = best._replace(evaluations_since=best.evaluations_since + 1)
        if self.settings.stop == "all" or patience is None:
            return ()
        running = [task for task in self.drawn if task not in progress.left and task in progress.task_bests]
        stopped = tuple(task for task in running if progress.task_bests[task].evaluations_since >= patience)
        if stopped:
            progress.left |= dict.fromkeys(stopped, evaluation.step)
            self.tasks_left = self.sampler.leave_out(progress.left)
        return stopped

    @property
    def has_best_weights(self) -> bool:
        """Whether the model's weights are those that `load_best` would load."""
        return [step for _, step in self.progress.bests] == [self.step] and self.average is None

    def load_best(self) -> None:
        """Loads the best weights, or the mean of the best ones, for what follows training."""
        best = [self._best_weights(step) for _, step in self.progress.bests]
        if best:
            self.model.load_state_dict(best[0] if len(best) == 1 else mean_weights(best))

    def _best_weights(self, step: int) -> Mapping[str, torch.Tensor]:
        path = self._best(step)
        self.writer.wait(path)
        return ckpt.read_checkpoint(path).tensors["model"]

    def _best(self, step: int) -> Path:
        return self.checkpoints / f"{ckpt.BEST}{step}"
