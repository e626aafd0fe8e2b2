"""Worker processes on this machine: their answers, their deaths, and their end."""

import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from polytask import BulkSettings, Finished, UserError, start_predicting_files
from polytask.bulk import local

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
    assert "in each of 3 attempts" in errors["part-00002.parquet"]
    with pytest.raises(
        UserError, match=r"1 of 6 shards are missing:\n  part-00002.parquet \(.*a.parquet, rows 41 to 50"
    ):
        running.finish()
    same_rows(read_output(tmp_path / "out"), [row for row in plain if not 40 <= row["number"] < 50])


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
