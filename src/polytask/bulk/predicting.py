"""Predicts shards with one model, which is loaded once: what every worker of every engine does."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from polytask.bulk.attempts import ATTEMPTS
from polytask.bulk.plan import Options, model_hashes
from polytask.bulk.shards import Shard, num_rows, open_shard
from polytask.bulk.storage import Storage
from polytask.serving.files import encoding_of_tasks, predict_rows
from polytask.serving.predictor import Predictor
from polytask.types import UserError

MOST_WORKERS = 16
"""Workers of a machine without GPUs, by default: each has its own copy of the model, and several threads if there are
more cores."""


@dataclass(frozen=True)
class Job:
    """What a worker needs to know. It is sent as JSON."""

    run: str
    output: str
    options: Options
    strict: bool = False
    trust_plugins: bool = False
    model: Mapping[str, str] = field(default_factory=dict)
    """The SHA-256 of the model's files: on another machine the same path may be another model."""
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
            predictor = Predictor.load(
                run,
                job.device,
                options.precision,
                abstain_below=options.abstain_below,
                trust_plugins=job.trust_plugins,
            )
            if job.model and model_hashes(run) != job.model:
                raise UserError(f"{run}: the model has changed since the plan was made, or is another one here")
        self.predictor = predictor
        self.encoding = encoding_of_tasks(predictor, options.tasks)

    def predict(self, shard: Shard, attempts: int = 1) -> ShardReport:
        """Predicts and writes a shard, unless it is there already. Errors that may pass are tried again."""
        while True:
            try:
                return self._predict(shard, attempts)
            except Exception as error:
                lasting = isinstance(error, UserError) and not isinstance(error.__cause__, OSError)
                if lasting or attempts >= ATTEMPTS:
                    tried = "" if lasting else f" ({attempts} attempts)"
                    message = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
                    return ShardReport(shard, False, f"{message}{tried}", attempts)
                attempts += 1

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
            parts = self.predictor, self.job.options.tasks, file
            columns = self.job.options.columns or None
            if target.is_local:
                done = predict_rows(*parts, Path(target.path), columns, **options)
            else:
                with target.written() as path:
                    done = predict_rows(*parts, path, columns, **options)
        counts = done.without_text, done.truncated, done.abstained
        return ShardReport(shard, True, None, attempts, *counts)


def is_written(shard: Shard, output: Storage) -> bool:
    """Whether a shard is there with all of its rows."""
    target = output / shard.output
    return target.exists() and num_rows(target) == shard.rows
