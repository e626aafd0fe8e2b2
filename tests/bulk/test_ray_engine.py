"""The division of a cluster among workers; test_kills.py runs and kills them."""

import json
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from polytask.bulk.attempts import ATTEMPTS, Attempts
from polytask.bulk.plan import Options
from polytask.bulk.predicting import Job, ShardReport
from polytask.bulk.ray_engine import ShardActor, cpus_per_worker, default_workers
from polytask.bulk.shards import Shard
from polytask.bulk.storage import Storage


@pytest.mark.parametrize(
    ("machines", "workers", "expected"),
    [
        ([2], 1, 2),
        ([2], 2, 1),
        ([2], 3, 1),
        ([4, 4], 1, 4),
        ([4, 4], 3, 2),
        ([3, 5], 2, 3),
        ([0, 8], 4, 2),
        ([0], 1, 1),
    ],
)
def test_all_workers_fit_on_the_machines(machines: list[int], workers: int, expected: int) -> None:
    assert cpus_per_worker(machines, workers) == expected


def test_the_default_number_of_workers() -> None:
    machines: list[dict[str, float]] = [{"CPU": 2.0}, {"CPU": 64.0, "GPU": 8.0}, {"memory": 1.0}]
    assert default_workers(machines, 0) == 2 + 16
    assert default_workers(machines, 1) == 8
    assert default_workers(machines, 0.5) == 16
    assert default_workers([{}], 0) == default_workers([{}], 1) == 1


class Recorded:
    """A predictor that records what it is asked, and writes nothing."""

    def __init__(self, output: Storage) -> None:
        self.output, self.attempts = output, list[int]()

    def predict(self, shard: Shard, attempts: int) -> ShardReport:
        self.attempts.append(attempts)
        return ShardReport(shard, attempts=attempts)


def test_a_shard_that_was_begun_too_often_is_given_up(tmp_path: Path) -> None:
    actor, counter = object.__new__(ShardActor), Attempts()
    actor.error, actor.ray = None, SimpleNamespace(get=lambda number: number)
    actor.attempts = SimpleNamespace(begin=SimpleNamespace(remote=counter.begin))
    actor.predictor = predictor = Recorded(Storage.of(str(tmp_path)))  # type: ignore[assignment]
    shard = Shard("part-00000.parquet", "in.parquet", 0, 5)
    for _ in range(ATTEMPTS):
        assert json.loads(actor({"shard": asdict(shard)})["report"])["error"] is None
    last = json.loads(actor({"shard": asdict(shard)})["report"])
    assert "its worker died in each of 3 attempts" in last["error"]
    assert predictor.attempts == [1, 2, 3]
    pq.write_table(pa.table({"number": range(5)}), tmp_path / shard.output)  # the last worker died after it had written
    assert json.loads(actor({"shard": asdict(shard)})["report"])["error"] is None


def test_a_model_that_cannot_be_loaded_is_fatal() -> None:
    options = Options(("mood",), (), "top", "float32", None, 10)
    actor = ShardActor(asdict(Job("no/such/run", "out", options)), None)
    assert actor({"shard": asdict(Shard("part", "in", 0, 1))})["fatal"] == "no/such/run: there is no such run"
