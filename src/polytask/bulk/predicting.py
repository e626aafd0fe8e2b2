"""Predicts shards with one model, which is loaded once: what every worker of every engine does."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

from polytask.bulk.attempts import ATTEMPTS
from polytask.bulk.output_folder import OtherPlan, check_plan, is_written
from polytask.bulk.plan import Options, model_hashes
from polytask.bulk.shards import Shard, open_shard
from polytask.bulk.storage import Storage
from polytask.disk.writable import DISK_FULL
from polytask.serving.files import encoding_of_tasks, predict_rows
from polytask.serving.predictor import Predictor
from polytask.types import UserError

MOST_WORKERS = 16
"""Workers of a machine without GPUs, by default: each has its own copy of the model, and several threads if there are
more cores."""


Then = Literal["go on", "again", "replace", "stop"]
"""What to do next: the next shard (after an error, because the input is wrong), another attempt, another attempt in a
new process (this one may be broken, as after an error of the GPU), or the end of the command (no shard could be
written)."""


@dataclass(frozen=True)
class Job:
    """What a worker needs to know. It is sent as JSON."""

    run: str
    output: str
    options: Options
    strict: bool = False
    model: Mapping[str, str] = field(default_factory=dict)
    """The SHA-256 of the model's files: on another machine the same path may be another model."""
    plan: str | None = None
    """The id of the plan in the output folder."""
    device: str = "auto"
    threads: int | None = None
    """CPU threads of the worker. None: as many as PyTorch chooses."""


@dataclass(frozen=True)
class ShardReport:
    """The end of a shard: written now, written before, or failed."""

    shard: Shard
    computed: bool = True
    """Whether it was computed now. It was not if it was there already."""
    error: str | None = None
    attempts: int = 1
    then: Then = "go on"
    """After an error, what to do next: an attempt in this process or in a new one, or the end of the command."""
    without_text: Mapping[str, int] = field(default_factory=dict)
    truncated: Mapping[str, int] = field(default_factory=dict)
    abstained: Mapping[str, int] = field(default_factory=dict)


class ShardPredictor:
    """A loaded model that predicts shards and writes each of them whole."""

    def __init__(self, job: Job, predictor: Predictor | None = None) -> None:
        self.job, self.output, options = job, Storage.of(job.output), job.options
        if job.threads is not None:
            # The tokenizer's threads, which start when it is first used.
            os.environ.setdefault("RAYON_NUM_THREADS", str(job.threads))
            torch.set_num_threads(job.threads)
        if predictor is None:
            run = Path(job.run)
            if job.model and model_hashes(run) != job.model:  # before anything of it is loaded, or any plug-in runs
                raise UserError(f"{run}: the model has changed since the plan was made, or is another one here")
            predictor = Predictor.load(run, job.device, options.precision, abstain_below=options.abstain_below)
        self.predictor = predictor
        self.encoding = encoding_of_tasks(predictor, options.tasks)

    def predict(self, shard: Shard, attempts: int = 1, in_place: bool = True) -> ShardReport:
        """Predicts and writes a shard, unless it is there already. Errors that may pass are tried again.

        After an error that may be this process's own, the next attempt is made only with `in_place`.
        """
        while True:
            report = self._try(shard, attempts)
            here = report.then == "again" or (in_place and report.then == "replace")
            if not here or attempts >= ATTEMPTS:
                return report
            attempts += 1

    def _try(self, shard: Shard, attempts: int) -> ShardReport:
        try:
            return self._predict(shard, attempts)
        except Exception as error:
            message = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
            then = what_follows(error)
            tried = f" ({attempts} attempts)" if then in ("again", "replace") else ""
            return ShardReport(shard, False, f"{message}{tried}", attempts, then)

    def _predict(self, shard: Shard, attempts: int) -> ShardReport:
        target = self.output / shard.output
        if is_written(shard, self.output):  # by a worker that was taken for dead
            return ShardReport(shard, computed=False, attempts=attempts)
        with open_shard(shard, self.encoding) as file:
            options: dict[str, Any] = {
                "probabilities": self.job.options.probabilities,
                "strict": self.job.strict,
                "expected": shard.rows,
            }
            columns = self.job.options.columns or None
            with target.written() as path:
                done = predict_rows(self.predictor, self.job.options.tasks, file, path, columns, **options)
                if self.job.plan is not None:
                    check_plan(self.output, self.job.plan)  # just before the shard appears
        counts = done.without_text, done.truncated, done.abstained
        return ShardReport(shard, True, None, attempts, "go on", *counts)


def what_follows(error: Exception) -> Then:
    """What to do after an error of a shard."""
    full = any(isinstance(one, OSError) and one.errno in DISK_FULL for one in (error, error.__cause__))
    if full or isinstance(error, OtherPlan):
        return "stop"
    if isinstance(error, UserError):
        return "again" if isinstance(error.__cause__, OSError) else "go on"
    return "replace"
