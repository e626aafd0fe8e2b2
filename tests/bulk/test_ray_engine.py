"""The division of a cluster among workers; test_kills.py runs and kills them."""

import json
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from polytask.bulk import ray_engine
from polytask.bulk.attempts import ATTEMPTS, Attempts
from polytask.bulk.plan import Options
from polytask.bulk.predicting import Job, ShardReport
from polytask.bulk.ray_engine import ShardActor, cpus_per_worker, default_workers, predict_with_ray
from polytask.bulk.shards import Shard
from polytask.bulk.storage import Storage
from polytask.plugins.trust import trusted_plugins, write_trusted
from polytask.types import UserError

JOB = Job("no/such/run", "out", Options(("mood",), (), "top", "float32", None, 10))


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
    ],
)
def test_all_workers_fit_on_the_machines(machines: list[int], workers: int, expected: int) -> None:
    assert cpus_per_worker([{"CPU": float(cpus)} for cpus in machines], workers, 0) == expected


def test_workers_get_no_more_cpus_than_the_machines_with_gpus_have() -> None:
    machines: list[dict[str, float]] = [{"CPU": 64.0}, {"CPU": 4.0, "GPU": 2.0}, {"CPU": 0.0, "GPU": 8.0}]
    assert [cpus_per_worker(machines, workers, 1) for workers in (1, 2, 9)] == [4, 2, 1]
    assert cpus_per_worker(machines, 1, 0) == 64
    for impossible in ([{"CPU": 64.0}], machines[::2], []):
        with pytest.raises(UserError, match="--gpus-per-worker: a worker needs 1 CPU and 1 GPU, but no node"):
            cpus_per_worker(impossible, 1, 1)


def test_the_default_number_of_workers() -> None:
    machines: list[dict[str, float]] = [{"CPU": 2.0}, {"CPU": 64.0, "GPU": 8.0}, {"memory": 1.0}]
    assert default_workers(machines, 0) == 2 + 16
    assert default_workers(machines, 1) == 8
    assert default_workers(machines, 0.5) == 16
    assert default_workers([{"CPU": 2.0, "GPU": 8.0}], 1) == 2
    assert default_workers([{}], 0) == default_workers([{}], 1) == 1


class FakeRay:
    """A cluster with one node, and what Ray Data is asked for."""

    def __init__(self, node: dict[str, float]) -> None:
        self.node, self.asked = node, dict[str, Any]()
        self.exceptions = SimpleNamespace(RayError=RuntimeError)
        self.data = SimpleNamespace(from_items=lambda *_, **__: self, ActorPoolStrategy=SimpleNamespace)

    def nodes(self) -> list[dict[str, Any]]:
        return [{"Alive": True, "Resources": self.node}, {"Alive": False, "Resources": {"CPU": 99.0, "GPU": 9.0}}]

    def remote(self, **_: Any) -> Any:
        return lambda _: SimpleNamespace(remote=lambda: None)

    def map(self, _: Any, **asked: Any) -> "FakeRay":
        self.asked = asked
        return self

    def iter_rows(self) -> list[Any]:
        return []


def ask(monkeypatch: pytest.MonkeyPatch, node: dict[str, float], gpus: float | None) -> dict[str, Any]:
    """What Ray Data is asked for to predict three shards."""
    ray = FakeRay(node)
    monkeypatch.setattr(ray_engine, "connect", lambda *_: nullcontext(ray))
    monkeypatch.setattr(ray_engine, "_ray_data", lambda: ray.data)
    shards = [Shard(f"part-{number}", "in", 0, 1) for number in range(3)]
    assert not list(predict_with_ray(JOB, shards, None, gpus, None))
    return ray.asked


def test_workers_have_a_gpu_by_default_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = ask(monkeypatch, {"CPU": 8.0, "GPU": 2.0}, None)
    assert (asked["num_gpus"], asked["num_cpus"], asked["compute"].size) == (1, 4, 2)
    assert asked["fn_constructor_args"][0]["device"] == "auto"
    for gpus, node in ((None, {"CPU": 8.0}), (0, {"CPU": 8.0, "GPU": 2.0})):
        asked = ask(monkeypatch, node, gpus)
        assert (asked["num_gpus"], asked["num_cpus"], asked["compute"].size) == (None, 2, 3)
        assert asked["fn_constructor_args"][0]["device"] == "cpu"
    with pytest.raises(UserError, match="no node of the cluster has them"):
        ask(monkeypatch, {"CPU": 8.0}, 1)
    with pytest.raises(UserError, match="--gpus-per-worker: must be in"):
        ask(monkeypatch, {"CPU": 8.0}, 1.5)


class Recorded:
    """A predictor that records what it is asked, and writes nothing."""

    def __init__(self, output: Storage) -> None:
        self.output, self.attempts = output, list[int]()

    def predict(self, shard: Shard, attempts: int, in_place: bool) -> ShardReport:
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
    assert "its worker died in the last of 3 attempts" in last["error"]
    assert predictor.attempts == [1, 2, 3]
    pq.write_table(pa.table({"number": range(5)}), tmp_path / shard.output)  # the last worker died after it had written
    assert json.loads(actor({"shard": asdict(shard)})["report"])["error"] is None


def test_an_actor_with_an_error_ends_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray repeats its shard in a new one; the last error is reported."""
    actor, counter, ended = object.__new__(ShardActor), Attempts(), list[int]()
    actor.error, actor.ray = None, SimpleNamespace(get=lambda number: number)
    actor.attempts = SimpleNamespace(begin=SimpleNamespace(remote=counter.begin))
    shard = Shard("part-00000.parquet", "in.parquet", 0, 5)

    def fail(shard: Shard, attempts: int, in_place: bool) -> ShardReport:
        assert not in_place
        return ShardReport(shard, False, f"the GPU is sick, attempt {attempts}", attempts, "replace")

    actor.predictor = SimpleNamespace(predict=fail)  # type: ignore[assignment]
    monkeypatch.setattr("os._exit", ended.append)
    answers = [json.loads(actor({"shard": asdict(shard)})["report"]) for _ in range(ATTEMPTS)]
    assert ended == [1, 1]
    assert answers[-1]["error"] == "the GPU is sick, attempt 3"


def test_a_node_trusts_the_plugins_that_were_trusted_here_and_no_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("POLYTASK_CONFIG", str(tmp_path))
    write_trusted(tmp_path, ["a" * 64])  # by someone on the node
    seen: list[list[str]] = []
    monkeypatch.setattr(ray_engine, "ShardPredictor", lambda _: seen.append(trusted_plugins()))
    ShardActor(asdict(JOB), None, ["b" * 64])
    assert seen == [["b" * 64]]
    assert trusted_plugins() == []
    monkeypatch.setenv("POLYTASK_CONFIG", str(tmp_path))
    assert ask(monkeypatch, {"CPU": 8.0}, None)["fn_constructor_args"][2] == ["a" * 64]


def test_a_model_that_cannot_be_loaded_is_fatal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYTASK_CONFIG", "changed by the actor")
    actor = ShardActor(asdict(JOB), None)
    assert actor({"shard": asdict(Shard("part", "in", 0, 1))})["fatal"] == "no/such/run: there is no such run"
