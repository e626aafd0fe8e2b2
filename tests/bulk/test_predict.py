"""Bulk prediction in this process: rows, restarts, file systems, failures."""

import errno
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pyarrow.parquet as pq
import pytest

from polytask import BulkSettings, Finished, UserError, load, predict_file, predict_files, start_predicting_files
from polytask.bulk import local, predicting
from polytask.bulk.plan import Options
from polytask.bulk.predicting import Job, ShardPredictor

from .conftest import read_output, same_rows

FULL_DISK = """
import errno, os
from polytask.bulk import predicting
from polytask.bulk.worker import main

def fail(*parts, **_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(parts[3]))

predicting.predict_rows = fail
main()
"""


@pytest.fixture
def memory() -> Iterator[Any]:
    """fsspec's file system in memory, empty afterwards."""
    system = fsspec.filesystem("memory")
    yield system
    system.store.clear()


def test_every_row_once_in_order_as_plain_prediction(
    tiny_run: Finished, bulk_input: Path, tmp_path: Path, plain: list[dict[str, Any]]
) -> None:
    done = predict_files(tiny_run.folder, bulk_input, tmp_path, workers=1, rows_per_shard=20)
    assert (done.rows, done.shards, done.computed_shards, done.computed_rows) == (95, 6, 6, 95)
    same_rows(read_output(tmp_path), plain)
    blank = sum(not row["text"] for row in plain)
    assert done.without_text == {"opinion": blank, "question": 0}
    summary = json.loads((tmp_path / "_SUCCESS.json").read_text())
    assert (summary["rows"], summary["failures"], summary["without_text"]["opinion"]) == (95, {}, blank)
    assert summary["rows_per_second"] == pytest.approx(95 / summary["seconds"], rel=0.1)
    found, expected = (pq.read_schema(tmp_path / "part-00000.parquet"), pq.read_schema(bulk_input / "a.parquet"))
    assert [found.field(name).type for name in expected.names] == expected.types


def test_tasks_that_share_the_encoder_share_one_pass(
    tiny_run: Finished, bulk_input: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load(tiny_run.folder)
    calls: list[tuple[str, ...]] = []
    answer = type(model).answer
    monkeypatch.setattr(
        type(model), "answer", lambda self, tasks, *more: calls.append(tuple(tasks)) or answer(self, tasks, *more)
    )
    columns = {"columns": ["question1", "question2"], "workers": 1}
    predict_files(tiny_run.folder, bulk_input / "a.parquet", tmp_path, **columns)  # type: ignore[arg-type]
    assert calls == [("question", "similarity")]
    assert model.bundle.model.passes(("question", "similarity")) == [("question", "similarity")]


def test_a_restart_computes_only_what_is_missing(
    tiny_run: Finished, bulk_input: Path, tmp_path: Path, plain: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    computed: list[str] = []
    predict = ShardPredictor._predict
    monkeypatch.setattr(
        ShardPredictor,
        "_predict",
        lambda self, shard, *more: computed.append(shard.output) or predict(self, shard, *more),
    )
    settings = BulkSettings(workers=1, rows_per_shard=20)
    running = start_predicting_files(tiny_run.folder, bulk_input, tmp_path, settings)
    reports = running.reports()
    next(reports), next(reports)
    reports.close()  # type: ignore[attr-defined]
    assert not (tmp_path / "_SUCCESS.json").exists()
    (tmp_path / "part-00001.parquet").write_bytes((tmp_path / "part-00001.parquet").read_bytes()[:-9])  # a half shard
    times = (tmp_path / "part-00000.parquet").stat().st_mtime_ns
    done = predict_files(tiny_run.folder, bulk_input, tmp_path, workers=1)
    assert computed == [f"part-{n:05}.parquet" for n in (0, 1, 1, 2, 3, 4, 5)]
    assert (done.shards, done.computed_shards, done.computed_rows) == (6, 5, 75)
    assert (tmp_path / "part-00000.parquet").stat().st_mtime_ns == times
    same_rows(read_output(tmp_path), plain)
    assert predict_files(tiny_run.folder, bulk_input, tmp_path, workers=1).computed_shards == 0
    assert len(computed) == 7


@pytest.mark.parametrize("scheme", ["file", "memory"])
def test_other_file_systems(
    scheme: str, memory: Any, tiny_run: Finished, bulk_input: Path, tmp_path: Path, plain: list[dict[str, Any]]
) -> None:
    system = memory if scheme == "memory" else fsspec.filesystem("file")
    for name in ("a", "b", "c"):
        system.makedirs(f"{tmp_path}/in", exist_ok=True)
        system.put_file(str(bulk_input / f"{name}.parquet"), f"{tmp_path}/in/{name}.parquet")
    source, output = f"{scheme}://{tmp_path}/in/*.parquet", f"{scheme}://{tmp_path}/out"
    options: dict[str, Any] = {"workers": 1} if scheme == "file" else {}
    assert predict_files(tiny_run.folder, source, output, rows_per_shard=20, **options).computed_shards == 6
    shards = sorted(system.glob(f"{tmp_path}/out/part-*"))
    rows = [row for path in shards for row in pq.read_table(path, filesystem=system).to_pylist()]
    same_rows(rows, plain)
    system.rm(shards[3])
    assert predict_files(tiny_run.folder, source, output, **options).computed_shards == 1
    assert system.exists(f"{tmp_path}/out/_SUCCESS.json")
    if scheme == "memory":
        for wrong in ({"workers": 2}, {"engine": "ray"}):
            with pytest.raises(UserError, match="only this process can see its memory"):
                predict_files(tiny_run.folder, source, output, **wrong)  # type: ignore[arg-type]


def test_text_files_are_one_shard_each_in_their_own_format(tiny_run: Finished, tmp_path: Path, memory: Any) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_text('text;n\n"two\nlines";1\nbad;2\n;3\n')
    (tmp_path / "in" / "b.jsonl").write_text('{"text": "good", "n": [1]}\n{"text": null}\n')
    (tmp_path / "in" / "readme.md").write_text("not data")
    memory.put(str(tmp_path / "in"), "/texts", recursive=True)
    for source, output in ((str(tmp_path / "in"), tmp_path / "out"), ("memory://texts", tmp_path / "copied")):
        done = predict_files(tiny_run.folder, source, output, workers=1, rows_per_shard=1)
        assert (done.rows, done.shards) == (5, 2)
        for number, name in enumerate(("a.csv", "b.jsonl")):
            plain = tmp_path / f"plain-{name}"
            predict_file(load(tiny_run.folder), None, str(tmp_path / "in" / name), plain, force=True)
            assert (output / f"part-{number:05}{plain.suffix}").read_text() == plain.read_text()


def test_a_bad_shard_is_named_and_the_others_are_written(tiny_run: Finished, tmp_path: Path, make_rows: Any) -> None:
    table = make_rows(0, 60)
    texts = [None if number == 24 else "a text" for number in range(60)]
    pq.write_table(table.set_column(1, "text", [texts]), tmp_path / "in.parquet")
    output = tmp_path / "out"
    with pytest.raises(UserError) as error:
        predict_files(
            tiny_run.folder, tmp_path / "in.parquet", output, workers=1, rows_per_shard=20, strict=True, tasks="opinion"
        )
    assert "1 of 3 shards are missing" in str(error.value)
    assert f"part-00001.parquet ({tmp_path}/in.parquet, rows 21 to 40): " in str(error.value)
    assert "in.parquet, row 25, column 'text'" in str(error.value)
    assert len(json.loads((output / "_FAILED.json").read_text())["failures"]) == 1
    again = predict_files(tiny_run.folder, tmp_path / "in.parquet", output, workers=1, tasks="opinion")
    assert (again.computed_shards, again.without_text) == (1, {"opinion": 1})
    assert not (output / "_FAILED.json").exists()


def test_errors_that_may_pass_are_tried_again(
    tiny_run: Finished, bulk_input: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_shard, failures = predicting.open_shard, ["part-00000.parquet"] * 2 + ["part-00002.parquet"] * 9

    def open_or_fail(shard: Any, *more: Any) -> Any:
        if shard.output in failures:
            failures.remove(shard.output)
            raise OSError("the network is away")
        return open_shard(shard, *more)

    monkeypatch.setattr(predicting, "open_shard", open_or_fail)
    with pytest.raises(
        UserError, match=r"1 of 6 shards(.|\n)*part-00002(.|\n)*OSError: the network is away \(3 attempts"
    ):
        predict_files(tiny_run.folder, bulk_input, tmp_path, workers=1, rows_per_shard=20)
    assert json.loads((tmp_path / "_FAILED.json").read_text())["attempts"] == {
        "part-00000.parquet": 3,
        "part-00002.parquet": 3,
    }


@pytest.mark.parametrize("engine", ["in this process", "workers"])
def test_a_full_disk_stops_the_command_at_once(
    engine: str, tiny_run: Finished, bulk_input: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other shards would be computed in vain."""
    output, begun = tmp_path / "out", list[str]()

    def fail(*parts: Any, **_: Any) -> Any:
        begun.append(str(parts[3]))
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), begun[-1])

    monkeypatch.setattr(predicting, "predict_rows", fail)
    if engine == "workers":
        program = tmp_path / "full.py"
        program.write_text(FULL_DISK)
        monkeypatch.setattr(local, "python_module", lambda _: [sys.executable, str(program)])
    with pytest.raises(UserError, match=rf"{output}/part-0000\d.parquet: cannot be written: No space left.*free some"):
        predict_files(tiny_run.folder, bulk_input, output, workers=2 if engine == "workers" else 1, rows_per_shard=20)
    assert len(begun) == (0 if engine == "workers" else 1)
    assert {path.name for path in output.iterdir()} == {".lock", "_plan.json"}


def test_another_model_is_refused_before_it_is_loaded(tiny_run: Finished, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its plug-ins would run."""
    loaded: list[Any] = []
    monkeypatch.setattr(predicting.Predictor, "load", lambda *_, **__: loaded.append(1))
    options = Options(("opinion",), (), "top", "float32", None, 10)
    with pytest.raises(UserError, match="the model has changed since the plan was made, or is another one here"):
        ShardPredictor(Job(str(tiny_run.folder), "out", options, model={"tasks.json": "0" * 64}))
    assert not loaded


def test_a_file_that_changes_meanwhile_fails(tiny_run: Finished, tmp_path: Path, make_rows: Any) -> None:
    source = tmp_path / "in.parquet"
    pq.write_table(make_rows(0, 40), source)
    running = start_predicting_files(tiny_run.folder, source, tmp_path / "out", BulkSettings(workers=1))
    pq.write_table(make_rows(0, 30), source)
    assert "expected 40 rows, found 30" in str(next(running.reports()).error)
    assert not list((tmp_path / "out").glob("part-*"))
    running = start_predicting_files(tiny_run.folder, source, tmp_path / "out", BulkSettings(workers=1))
    pq.write_table(make_rows(7, 30), source)
    assert [report.error for report in running.reports()] == [None]
    with pytest.raises(UserError, match=r"in.parquet: has changed while it was predicted; choose another"):
        running.finish()
    assert not (tmp_path / "out" / "_SUCCESS.json").exists()
