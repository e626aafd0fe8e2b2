"""The engine `ray`: shards are predicted by a pool of Ray Data's actors, on this machine or on a cluster.

Ray starts the actors, gives them shards, replaces those that have died and repeats their shards.
"""

import json
import logging
import math
import os
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from polytask.bulk.attempts import ATTEMPTS, Attempts
from polytask.bulk.output_folder import is_written
from polytask.bulk.predicting import MOST_WORKERS, Job, ShardPredictor, ShardReport
from polytask.bulk.shards import Shard
from polytask.cluster_room import check_numbers, default_gpus, no_room, room
from polytask.disk.records import convert
from polytask.plugins.trust import CONFIG, trusted_plugins, write_trusted
from polytask.ray_cluster import connect, import_ray
from polytask.types import UserError

WHAT = "polytask predict --engine ray"
IN_FLIGHT = 2
"""Shards that an actor is given at once: the next one is there when it has finished one."""
MOST_BLOCKS = 2000
"""Pieces in which the shards are given to Ray. A piece that is repeated costs only the shards that are not written."""


class ShardActor:
    """An actor that loads the model once and predicts one shard per call."""

    def __init__(self, job: dict[str, Any], attempts: Any, trusted: Sequence[str] = ()) -> None:
        """`trusted` are the hashes of the plug-ins that the user has trusted where the command runs: no others run."""
        self.ray, self.attempts = import_ray(WHAT), attempts
        self.error: str | None = None
        with tempfile.TemporaryDirectory(prefix="polytask-config-") as config:
            write_trusted(Path(config), trusted)
            os.environ[CONFIG] = config  # once the folder is gone, nothing more is trusted
            try:
                self.predictor = ShardPredictor(convert(job, Job, WHAT))
            except UserError as error:
                self.error = str(error)  # Ray would repeat a constructor that fails again and again

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        shard: Shard = convert(row["shard"], Shard, WHAT)
        if self.error is not None:
            return {"fatal": self.error, "report": json.dumps(None)}
        attempt = self.ray.get(self.attempts.begin.remote(shard.output))
        if attempt > ATTEMPTS and not is_written(shard, self.predictor.output):
            problem = f"its worker died in the last of {ATTEMPTS} attempts; if memory ran out, use fewer workers"
            report = ShardReport(shard, computed=False, error=problem, attempts=ATTEMPTS)
        else:
            report = self.predictor.predict(shard, min(attempt, ATTEMPTS), in_place=False)
            if report.then == "replace" and report.attempts < ATTEMPTS:
                os._exit(1)  # nothing in this process can be relied on: Ray repeats the shard in a new one
        return {"fatal": None, "report": json.dumps(asdict(report))}


def predict_with_ray(
    job: Job, shards: Sequence[Shard], workers: int | None, gpus_per_worker: float | None, address: str | None
) -> Iterator[ShardReport]:
    """Predicts shards with Ray and yields their reports. Workers that no machine has room for are refused."""
    check_numbers(workers, 1, gpus_per_worker, "worker")
    with connect(WHAT, address) as ray:
        data = _ray_data()
        machines = [machine["Resources"] for machine in ray.nodes() if machine["Alive"]]
        gpus = default_gpus(machines) if gpus_per_worker is None else gpus_per_worker
        size = min(workers or default_workers(machines, gpus), len(shards))
        cpus = cpus_per_worker(machines, size, gpus)
        own = replace(job, threads=cpus, device="auto" if gpus else "cpu")
        attempts = ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)(Attempts).remote()
        items = [{"shard": asdict(shard)} for shard in shards]
        reports = data.from_items(items, override_num_blocks=min(len(items), MOST_BLOCKS)).map(
            ShardActor,
            fn_constructor_args=(asdict(own), attempts, trusted_plugins()),
            compute=data.ActorPoolStrategy(size=size, max_tasks_in_flight_per_actor=IN_FLIGHT),
            num_cpus=cpus,
            num_gpus=gpus or None,
        )
        try:
            for row in reports.iter_rows():
                if row["fatal"] is not None:
                    raise UserError(row["fatal"])
                yield convert(json.loads(row["report"]), ShardReport, WHAT)
        except ray.exceptions.RayError as error:
            raise UserError(
                f"{WHAT}: Ray stopped ({str(error).strip().splitlines()[-1]}); the same command continues with the "
                "shards that are missing"
            ) from error


def default_workers(machines: Sequence[Mapping[str, float]], gpus: float) -> int:
    """As many workers as the machines have room for; without GPUs, up to a limit per machine."""
    most = math.inf if gpus else MOST_WORKERS
    return max(1, sum(int(min(room(machine, 1, gpus), most)) for machine in machines))


def cpus_per_worker(machines: Sequence[Mapping[str, float]], workers: int, gpus: float) -> int:
    """The most CPUs that each worker can have if all of them are to fit on these machines, or else 1.

    Only machines that have room for a worker's GPUs count. With more workers than fit, some of them wait; but Ray would
    wait for ever, and say nothing, for resources that no machine has.
    """
    if not any(room(machine, 1, gpus) for machine in machines):
        raise UserError(no_room(machines, 1, gpus, "worker"))
    counts = range(int(max(machine.get("CPU", 0) for machine in machines)), 1, -1)
    return next((cpus for cpus in counts if sum(room(own, cpus, gpus) for own in machines) >= workers), 1)


def _ray_data() -> Any:
    """The package `ray.data`, without progress bars and messages."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # about options that Ray Data itself sets
        from ray import data  # noqa: PLC0415  (an optional extra)

        context = data.DataContext.get_current()
        context.enable_progress_bars = False
        context.print_on_execution_start = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    return data
