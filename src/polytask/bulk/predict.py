"""Bulk prediction from start to finish: makes or reads the plan, lets an engine predict what is missing, sums up."""

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch

from polytask.bulk.local import predict_in_process, predict_in_workers
from polytask.bulk.output_folder import (
    FAILED,
    SUCCESS,
    OtherPlan,
    check_plan,
    earlier_plan,
    lock_folder,
    missing_shards,
    remove_earlier,
)
from polytask.bulk.plan import (
    AGAIN,
    ROWS_PER_SHARD,
    Options,
    Plan,
    changed_inputs,
    check_same,
    choose_tasks,
    find_inputs,
    make_plan,
    model_hashes,
    plan_id,
)
from polytask.bulk.predicting import MOST_WORKERS, Job, ShardReport
from polytask.bulk.ray_engine import predict_with_ray
from polytask.bulk.settings import BulkSettings, Engine, check_settings
from polytask.bulk.shards import Shard
from polytask.bulk.storage import Storage
from polytask.disk.lock import FolderLock
from polytask.machine import usable_cores
from polytask.serving.predictor import Predictor
from polytask.types import UserError

SHOWN = 5


@dataclass(frozen=True)
class PredictedFiles:
    """The result of `predict_files`, which is also the content of _SUCCESS.json."""

    rows: int
    """All rows of the input, which are all in the output."""
    shards: int
    computed_shards: int
    """The shards that this call has computed. The others were there already."""
    computed_rows: int
    seconds: float
    rows_per_second: float
    """The computed rows, divided by the seconds of the whole call."""
    attempts: Mapping[str, int] = field(default_factory=dict)
    """The shards that were tried more than once, because a worker died or a file could not be read."""
    failures: Mapping[str, str] = field(default_factory=dict)
    """The shards that are missing, with the reason."""
    without_text: Mapping[str, int] = field(default_factory=dict)
    """For each task, the number of computed rows without text, which have no prediction."""
    truncated: Mapping[str, int] = field(default_factory=dict)
    """For each task, the number of computed rows that are longer than the model's `max_length`."""
    abstained: Mapping[str, int] = field(default_factory=dict)
    """For each task, the number of computed rows without a label because of low probabilities."""


class BulkPrediction:
    """A bulk prediction whose plan is written: iterate over `reports`, then call `finish`."""

    def __init__(
        self,
        plan: Plan,
        output: Storage,
        missing: Sequence[Shard],
        work: Iterator[ShardReport],
        lock: FolderLock | None = None,
    ) -> None:
        """`lock` is that of the output folder, which is released at the end."""
        self.plan, self.output, self.missing = plan, output, missing
        self._work, self._started, self._lock = work, time.perf_counter(), lock
        self._reports: list[ShardReport] = []

    def reports(self) -> Iterator[ShardReport]:
        """Predicts the missing shards, and yields a report of each."""
        try:
            for report in self._work:
                if report.then == "stop" and report.error is not None:
                    raise UserError(report.error)
                self._reports.append(report)
                yield report
        except BaseException:
            self._end_work()
            self._unlock()
            raise
        self._end_work()

    def _end_work(self) -> None:
        """Ends the workers before their leftovers are removed."""
        if (close := getattr(self._work, "close", None)) is not None:
            close()
        self.output.clear_leftovers()

    def _unlock(self) -> None:
        if self._lock is not None:
            self._lock.release()

    def finish(self) -> PredictedFiles:
        """Checks that all shards are there, and writes _SUCCESS.json; else writes _FAILED.json and raises."""
        try:
            return self._finish()
        finally:
            self._unlock()

    def _finish(self) -> PredictedFiles:
        if Plan.read(self.output) != self.plan:
            raise OtherPlan(self.output)
        if changed := changed_inputs(self.plan):
            raise UserError(f"{changed[0]}: has changed while it was predicted; {AGAIN}")
        result = self._result()
        if self.missing or result.failures or not (self.output / SUCCESS).exists():  # it has the numbers of the work
            (self.output / (FAILED if result.failures else SUCCESS)).write_json(asdict(result))
        if result.failures:
            listed = [f"\n  {name}: {error}" for name, error in list(result.failures.items())[:SHOWN]]
            more = f"\n  and {len(result.failures) - SHOWN:,} more" if len(result.failures) > SHOWN else ""
            raise UserError(
                f"{self.output.url}: {len(result.failures):,} of {result.shards:,} shards are missing:"
                f"{''.join(listed)}{more}\nThe same command tries these again"
            )
        return result

    def _result(self) -> PredictedFiles:
        computed = [report for report in self._reports if report.computed]
        there = self.output.names()
        failures = {str(report.shard): report.error for report in self._reports if report.error is not None}
        absent = [str(shard) for shard in self.plan.shards if shard.output not in there]
        failures = {**dict.fromkeys(absent, "was not written"), **failures}
        seconds = time.perf_counter() - self._started
        rows = sum(report.shard.rows for report in computed)
        without_text, truncated, abstained = (Counter[str]() for _ in range(3))
        for report in computed:
            without_text.update(report.without_text)
            truncated.update(report.truncated)
            abstained.update(report.abstained)
        return PredictedFiles(
            rows=self.plan.rows,
            shards=len(self.plan.shards),
            computed_shards=len(computed),
            computed_rows=rows,
            seconds=round(seconds, 3),
            rows_per_second=round(rows / seconds, 1),
            attempts={report.shard.output: report.attempts for report in self._reports if report.attempts > 1},
            failures=failures,
            without_text=dict(without_text),
            truncated=dict(truncated),
            abstained=dict(abstained),
        )


def start_predicting_files(
    run: str | Path, inputs: str | Path | Sequence[str | Path], output: str | Path, settings: BulkSettings
) -> BulkPrediction:
    """Does what `predict_files` does before the first prediction: iterate over the result's `reports` for the rest."""
    folder = Storage.of(str(output))
    patterns = [str(one) for one in ([inputs] if isinstance(inputs, str | Path) else inputs)]
    check_settings(settings, [folder, *map(Storage.of, patterns)])
    if folder.is_file():
        raise UserError(f"{folder.url}: is a file, and the output must be a folder; choose another name")
    files = find_inputs(patterns, folder)
    predictor = Predictor.load(run, "cpu", abstain_below=settings.abstain_below, trust_plugins=settings.trust_plugins)
    model = model_hashes(Path(run))
    before, earlier = plan_id(folder), earlier_plan(folder, settings.force)
    options = Options(
        tasks=tuple(choose_tasks(predictor, settings.tasks, settings.columns, files)),
        columns=tuple(settings.columns or ()),
        probabilities=settings.probabilities,
        precision=settings.precision,
        abstain_below=settings.abstain_below,
        rows_per_shard=settings.rows_per_shard or (earlier.options.rows_per_shard if earlier else ROWS_PER_SHARD),
    )
    if earlier is not None:
        check_same(earlier, folder, model, options, files)
    plan = earlier or make_plan(predictor, model, options, files)
    # Nothing has been changed up to here: a command that is refused leaves everything as it was.
    lock = lock_folder(folder)
    check_plan(folder, before)
    if earlier is None:
        remove_earlier(folder)
        plan.write(folder)
    missing = missing_shards(plan, folder)
    for name in (SUCCESS, FAILED) if missing else (FAILED,):
        (folder / name).remove()
    job = Job(str(Path(run).absolute()), folder.url, options, settings.strict, model, plan.id)
    return BulkPrediction(plan, folder, missing, _work(job, missing, predictor, settings, folder), lock)


def predict_files(
    run: str | Path,
    inputs: str | Path | Sequence[str | Path],
    output: str | Path,
    *,
    engine: Engine = "local",
    tasks: str | Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    probabilities: str = "top",
    precision: str = "float32",
    abstain_below: float | None = None,
    rows_per_shard: int | None = None,
    strict: bool = False,
    force: bool = False,
    workers: int | None = None,
    gpus_per_worker: float | None = None,
    address: str | None = None,
    trust_plugins: bool = False,
) -> PredictedFiles:
    """Predicts many files, in parallel and restartable: every row of the input is in the output exactly once.

    The output folder gets one file for each shard, which has the columns of the input and those that `predict_file`
    adds. A shard is written whole or not at all. If the call is stopped or killed, the same call computes only the
    shards that are missing; with another model, other inputs or other options it is refused.

    Args:
        run: The folder of the run, or its model folder. With Ray, every machine must be able to read it.
        inputs: A pattern, a folder, a file or several of them: local paths or URLs such as s3://bucket/in/*.parquet.
            The files are Parquet, or csv, tsv or JSON Lines, of which each file is one shard.
        output: The folder to write to: a local path or a URL.
        engine: "local" uses processes on this machine; "ray" uses Ray, on this machine or on a cluster.
        tasks: The tasks to predict. Default: all tasks whose text columns the first file has.
        columns: The text columns. Default: those of the training data.
        probabilities: "top" adds the probability of the predicted class, "all" also those of all classes, "none" none.
        precision: "float32" or "bf16".
        abstain_below: No label where no class has this probability. Default: as in the recipe.
        rows_per_shard: The most rows of a shard of a Parquet file. Default: 16,384, or as in the folder's plan.
        strict: Whether a row without text is an error of its shard. Otherwise its prediction is empty.
        force: Whether to delete the shards of an earlier plan in the output folder, and start again.
        workers: The number of workers. Default: one for each GPU or, without GPUs, for each CPU core, at most 16.
        gpus_per_worker: The GPUs that each worker reserves, for "ray"; with 0.5, two workers share one. Default: 1 if
            the cluster has GPUs, else 0.
        address: The address of the Ray cluster. Default: RAY_ADDRESS, or a Ray that is started on this machine.
        trust_plugins: Whether the run's plug-ins, which are Python programs, may run.
    """
    settings = BulkSettings(
        engine=engine,
        tasks=[tasks] if isinstance(tasks, str) else tasks,
        columns=columns,
        probabilities=probabilities,
        precision=precision,
        abstain_below=abstain_below,
        rows_per_shard=rows_per_shard,
        strict=strict,
        force=force,
        workers=workers,
        gpus_per_worker=gpus_per_worker,
        address=address,
        trust_plugins=trust_plugins,
    )
    running = start_predicting_files(run, inputs, output, settings)
    for _ in running.reports():
        pass
    return running.finish()


def _work(
    job: Job, shards: Sequence[Shard], predictor: Predictor, settings: BulkSettings, folder: Storage
) -> Iterator[ShardReport]:
    """The reports of the shards, which the engine has not yet begun to predict."""
    if not shards:
        return iter(())
    if settings.engine == "ray":
        return predict_with_ray(job, shards, settings.workers, settings.gpus_per_worker, settings.address)
    gpus = torch.cuda.device_count()
    in_memory = folder.is_in_memory or any(shard.input.startswith("memory://") for shard in shards)
    workers = settings.workers or (1 if in_memory else gpus or min(usable_cores(), MOST_WORKERS))
    # A process that uses a GPU may have to be replaced after an error, so it is not this one.
    if min(workers, len(shards)) > 1 or (gpus and not in_memory):
        return predict_in_workers(job, shards, workers, gpus)
    reused = predictor if not gpus and settings.precision == "float32" else None
    return predict_in_process(job, shards, reused)
