"""Worker processes on this machine: their answers, their deaths, and their end."""

import signal
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from polytask import BulkSettings, Finished, UserError, start_predicting_files
from polytask.bulk import local
from polytask.bulk.plan import Options
from polytask.bulk.predicting import Job
from polytask.bulk.shards import Shard

from .conftest import read_output, same_rows

DYING = """
import os, sys
from polytask.bulk.predicting import ShardPredictor
from polytask.bulk.worker import main

predict = ShardPredictor._predict

def die(self, shard, *more):
    if shard.output == "part-00002.parquet":
        os.kill(os.getpid(), 9)
    return predict(self, shard, *more)

ShardPredictor._predict = die
main()
"""


def start(run: Path, source: Path, output: Path, **options: Any) -> Any:
    return start_predicting_files(run, source, output, BulkSettings(workers=2, rows_per_shard=20, **options))


def test_two_workers_write_what_one_process_writes(
    tiny_run: Finished, bulk_input: Path, tmp_path: Path, plain: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shard that kills its workers is given up after three attempts; the others are written."""
    program = tmp_path / "dying.py"
    program.write_text(DYING)
    monkeypatch.setattr(local, "python_module", lambda _: [sys.executable, str(program)])
    running = start(tiny_run.folder, bulk_input, tmp_path / "out")
    errors = {report.shard.output: report.error for report in running.reports() if report.error}
    assert list(errors) == ["part-00002.parquet"]
    assert "its worker was killed (signal 9" in errors["part-00002.parquet"]
    assert "in the last of 3 attempts" in errors["part-00002.parquet"]
    with pytest.raises(
        UserError, match=r"1 of 6 shards are missing:\n  part-00002.parquet \(.*a.parquet, rows 41 to 50"
    ):
        running.finish()
    same_rows(read_output(tmp_path / "out"), [row for row in plain if not 40 <= row["number"] < 50])


SICK = """
import os, sys
from pathlib import Path
from polytask.bulk.predicting import ShardPredictor
from polytask.bulk.worker import main

predict, sick = ShardPredictor._predict, False

def fail(self, shard, *more):
    global sick
    once = Path(MARK)
    if shard.output == "part-00001.parquet" and not once.exists():
        once.touch()
        sick = True
    if sick or shard.output == "part-00004.parquet":
        raise RuntimeError(f"the GPU is sick: {shard.output}")
    return predict(self, shard, *more)

ShardPredictor._predict = fail
main()
"""


def test_a_worker_with_an_error_is_replaced(
    tiny_run: Finished, bulk_input: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After its first error every further shard would fail in the same process, and in a moment."""
    program = tmp_path / "sick.py"
    program.write_text(SICK.replace("MARK", repr(str(tmp_path / "mark"))))
    monkeypatch.setattr(local, "python_module", lambda _: [sys.executable, str(program)])
    running = start(tiny_run.folder, bulk_input, tmp_path / "out")
    reports = {report.shard.output: report for report in running.reports()}
    failed = "RuntimeError: the GPU is sick: part-00004.parquet (3 attempts)"
    assert {name: report.error for name, report in reports.items() if report.error} == {"part-00004.parquet": failed}
    assert {name: report.attempts for name, report in reports.items() if report.attempts > 1} == {
        "part-00001.parquet": 2,
        "part-00004.parquet": 3,
    }
    with pytest.raises(UserError, match=r"1 of 6 shards are missing:(.|\n)*RuntimeError: the GPU is sick"):
        running.finish()
    assert failed in (tmp_path / "out" / "_FAILED.json").read_text()


def test_the_threads_are_divided_among_the_workers_that_run(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs: list[Job] = []

    def start_none(job: Job) -> Any:
        jobs.append(job)
        return SimpleNamespace(shard=None, process=SimpleNamespace(terminate=lambda: None), end=lambda: None)

    def stop(_: Any) -> Any:
        raise InterruptedError

    monkeypatch.setattr(local, "_Worker", start_none)
    monkeypatch.setattr(local, "_wait", stop)
    monkeypatch.setattr(local, "usable_cores", lambda: 16)
    job = Job("run", "out", Options(("mood",), (), "top", "float32", None, 10))
    for shards, threads in ((2, 8), (40, 2)):
        jobs.clear()
        with pytest.raises(InterruptedError):
            list(local.predict_in_workers(job, [Shard(f"part-{n}", "in", 0, 1) for n in range(shards)], 8, 0))
        assert [job.threads for job in jobs] == [threads] * min(8, shards)


def test_a_worker_that_cannot_start_is_an_error(
    tiny_run: Finished, bulk_input: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "python_module", lambda _: ["false"])
    with pytest.raises(UserError, match="workers end before they are ready, the last one ended with exit code 1"):
        list(start(tiny_run.folder, bulk_input, tmp_path / "out").reports())


def test_another_model_in_the_workers_is_an_error(tiny_run: Finished, bulk_input: Path, tmp_path: Path) -> None:
    running = start(tiny_run.folder, bulk_input, tmp_path / "out")
    work = running._work.gi_frame.f_locals
    work["job"].model["tasks.json"] = "0" * 64
    with pytest.raises(UserError, match="the model has changed since the plan was made"):
        list(running.reports())


def test_how_a_worker_ended() -> None:
    class Ended:
        def __init__(self, code: int) -> None:
            self.code = code

        def wait(self) -> int:
            return self.code

    worker = object.__new__(local._Worker)
    for code, words in ((-signal.SIGTERM, "ended by signal 15"), (-signal.SIGKILL, "memory"), (3, "exit code 3")):
        worker.process = Ended(code)  # type: ignore[assignment]
        assert words in worker.how_ended()
