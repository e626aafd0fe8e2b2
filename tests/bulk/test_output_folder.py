"""One command at a time writes to an output folder, and a command that is refused leaves it as it was."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import fsspec
import pytest

from polytask import BulkSettings, Finished, UserError, predict_files, start_predicting_files
from polytask.bulk import output_folder
from polytask.bulk.plan import NAME, plan_id
from polytask.bulk.storage import Storage

HOLD = """
import sys
from pathlib import Path
from polytask.disk.lock import FolderLock
with FolderLock(Path(sys.argv[1])):
    print("locked", flush=True)
    sys.stdin.read()
"""


def predict(run: Path, source: Any, output: Path, **options: Any) -> Any:
    return predict_files(run, source, output, **{"workers": 1, "rows_per_shard": 20, "tasks": "opinion"} | options)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_force_removes_nothing_before_the_new_command_is_checked(
    tiny_run: Finished, bulk_input: Path, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    predict(tiny_run.folder, bulk_input, output)
    before = contents(output)
    broken = tmp_path / "broken.parquet"
    broken.write_text("no Parquet")
    for source, options in [
        (bulk_input, {"tasks": "mood"}),
        (bulk_input, {"columns": ["nowhere"]}),
        ([bulk_input, broken], {}),
    ]:
        with pytest.raises(UserError):
            predict(tiny_run.folder, source, output, force=True, **options)
        assert contents(output) == before


@pytest.mark.parametrize("name", ["old.parquet", "more.csv", "part-00099.parquet"])
def test_a_folder_with_other_data_is_refused(name: str, tiny_run: Finished, bulk_input: Path, tmp_path: Path) -> None:
    """Who reads the folder would read more rows than the input has."""
    (tmp_path / name).write_text("not ours")
    (tmp_path / "notes.txt").write_text("no data")
    before = contents(tmp_path)
    with pytest.raises(UserError, match=f"has 1 file.s. such as {name} but no _plan.json"):
        predict(tiny_run.folder, bulk_input, tmp_path)
    assert contents(tmp_path) == before
    (tmp_path / name).unlink()
    predict(tiny_run.folder, bulk_input, tmp_path)


def test_a_file_instead_of_the_folder_is_refused(tiny_run: Finished, bulk_input: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.parquet"
    output.write_text("a file")
    with pytest.raises(UserError, match=r"out.parquet: is a file, and the output must be a folder"):
        predict(tiny_run.folder, bulk_input, output)
    assert output.read_text() == "a file"


@pytest.mark.parametrize("plan", ["{}", "no JSON", None])
def test_force_removes_what_another_version_wrote(
    plan: str | None, tiny_run: Finished, bulk_input: Path, tmp_path: Path
) -> None:
    predict(tiny_run.folder, bulk_input, tmp_path, rows_per_shard=5)
    old = json.loads((tmp_path / NAME).read_text()) | {"format": 99}
    (tmp_path / NAME).write_text(json.dumps(old) if plan is None else plan)
    with pytest.raises(UserError, match=NAME):
        predict(tiny_run.folder, bulk_input, tmp_path)
    assert predict(tiny_run.folder, bulk_input, tmp_path, force=True).computed_shards == 6
    assert len(list(tmp_path.glob("part-*"))) == 6


def test_a_complete_folder_keeps_the_numbers_of_its_work(tiny_run: Finished, bulk_input: Path, tmp_path: Path) -> None:
    predict(tiny_run.folder, bulk_input, tmp_path)
    before = contents(tmp_path)
    assert predict(tiny_run.folder, bulk_input, tmp_path).computed_rows == 0
    assert contents(tmp_path) == before
    (tmp_path / "_SUCCESS.json").unlink()  # the command was killed just before
    predict(tiny_run.folder, bulk_input, tmp_path)
    assert (tmp_path / "_SUCCESS.json").exists()


def test_a_second_command_is_refused_while_the_first_is_running(
    tiny_run: Finished, bulk_input: Path, tmp_path: Path
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "locked\n"
        with pytest.raises(UserError, match=f"process {first.pid} on .* is writing to this folder; wait for it, stop"):
            predict(tiny_run.folder, bulk_input, tmp_path)
        first.communicate()
    assert {path.name for path in tmp_path.iterdir()} == {".lock"}
    assert predict(tiny_run.folder, bulk_input, tmp_path).rows == 95


def test_the_lock_is_released_at_the_end_and_after_an_error(
    tiny_run: Finished, bulk_input: Path, tmp_path: Path
) -> None:
    def is_free() -> bool:
        take = "import sys; from pathlib import Path; from polytask.disk.lock import FolderLock as Lock; "
        command = [sys.executable, "-c", f"{take}Lock(Path(sys.argv[1])).acquire()", str(tmp_path)]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    settings = BulkSettings(workers=1, tasks=("opinion",))
    running = start_predicting_files(tiny_run.folder, bulk_input, tmp_path, settings)
    assert not is_free()
    reports = running.reports()
    next(reports)
    reports.close()  # type: ignore[attr-defined]
    assert is_free()
    running = start_predicting_files(tiny_run.folder, bulk_input, tmp_path, settings)
    list(running.reports())
    assert not is_free()
    running.finish()
    assert is_free()


@pytest.mark.parametrize("scheme", ["file", "memory"])
def test_no_shard_is_written_into_the_folder_of_another_plan(
    scheme: str, tiny_run: Finished, bulk_input: Path, tmp_path: Path
) -> None:
    """In an object store there is no lock."""
    output = f"{scheme}://{tmp_path}/out"
    settings = BulkSettings(workers=1, rows_per_shard=20)
    first = start_predicting_files(tiny_run.folder, bulk_input / "a.parquet", output, settings)
    reports = first.reports()
    if scheme == "file":
        Path(f"{tmp_path}/out/{NAME}").unlink()  # the lock lets only another program do that
    else:
        start_predicting_files(tiny_run.folder, bulk_input / "b.parquet", output, settings)
    with pytest.raises(UserError, match="another command has written its plan here meanwhile"):
        list(reports)
    assert not [name for name in Storage.of(output).names() if name.startswith("part-")]
    fsspec.filesystem("memory").store.clear()


def test_a_plan_that_appears_while_the_command_is_checked_is_refused(
    tiny_run: Finished, bulk_input: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, output = tmp_path / "other", tmp_path / "out"
    predict(tiny_run.folder, bulk_input, other)

    def lock_later(folder: Storage) -> None:
        output.mkdir()
        (output / NAME).write_bytes((other / NAME).read_bytes())

    monkeypatch.setattr("polytask.bulk.predict.lock_folder", lock_later)
    with pytest.raises(UserError, match="another command has written its plan here meanwhile"):
        predict(tiny_run.folder, bulk_input, output)
    assert plan_id(Storage.of(str(output))) == plan_id(Storage.of(str(other))) is not None


def test_the_id_is_in_the_beginning_of_a_plan(tiny_run: Finished, bulk_input: Path, tmp_path: Path) -> None:
    folder = Storage.of(str(tmp_path))
    assert plan_id(folder) is None
    predict(tiny_run.folder, bulk_input, tmp_path, tasks=None)
    assert plan_id(folder) == json.loads((tmp_path / NAME).read_text())["id"]
    output_folder.check_plan(folder, plan_id(folder))
