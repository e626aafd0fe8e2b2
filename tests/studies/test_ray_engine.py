"""Cells on a Ray cluster: the results are those of worker processes, also if a worker is killed."""

import importlib
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from polytask.disk.cache import cache_folder
from polytask.ray_cluster import connect
from polytask.studies import ray_engine
from polytask.studies.cells import Cell
from polytask.studies.compare import StudyRunning
from polytask.studies.local_engine import LocalEngine
from polytask.studies.ray_engine import RayEngine
from polytask.studies.runner import CellReport, run_cells
from polytask.studies.study import read_study
from polytask.types import UserError

from .conftest import Done, study_file

pytest.importorskip("ray", reason="pip install -e '.[dev]' brings Ray")
TIMES = ("seconds", "phases", "examples_per_second", "peak_memory_bytes", "started", "throughput", "commit")
LONG = ["train.steps_per_epoch=60", "train.save_every=1"]
"""Enough steps to be killed between two of them."""


@pytest.fixture(scope="module")
def two_workers() -> Iterator[None]:
    """A Ray on this machine with room for two cells, for all tests of this file."""
    with connect("a test", cpus=2):
        yield


def without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_times(entry) for key, entry in value.items() if key not in TIMES}
    return [without_times(entry) for entry in value] if isinstance(value, list) else value


def results(run: Path) -> dict[str, Any]:
    """What a run has computed: weights and predictions as bytes, and its numbers."""
    files = [*sorted((run / "model").glob("*.safetensors")), *sorted((run / "predictions").iterdir())]
    content: dict[str, Any] = {file.name: file.read_bytes() for file in files}
    content["steps"] = [
        {key: value for key, value in json.loads(line).items() if key in ("kind", "step", "losses", "scores")}
        for line in (run / "metrics.jsonl").read_text().splitlines()
    ]
    return content | {"summary": without_times(json.loads((run / "summary.json").read_text()))}


def process_of(cell: Cell) -> int:
    """The process that trains the cell."""
    return int((cell.folder / ".lock").read_text().split()[1])


def has_checkpoint(cell: Cell) -> bool:
    """Whether the cell's run has saved a checkpoint after a step, and is not at its end."""
    steps = [int(path.name.rpartition("-")[2]) for path in (cell.folder / "checkpoints").glob("step-*")]
    return 0 < max(steps, default=0) < cell.steps


def parent_of(process: int) -> int:
    status = Path(f"/proc/{process}/status").read_text()
    return int(status.partition("PPid:")[2].split()[0])


def wait_for_end(process: int) -> None:
    try:
        handle = os.pidfd_open(process)
    except ProcessLookupError:
        return
    assert select.select([handle], [], [], 60)[0], f"process {process} has not ended"
    os.close(handle)


def small(folder: Path, tiny: list[str], **more: Any) -> StudyRunning:
    """One of the cells of `small_study`, or other ones, in another folder."""
    path = study_file(folder, tiny, **{"seeds": [0], "variants": {"cosine": {}}, **more})
    return StudyRunning(read_study(path), folder / "out")


def run_with_ray(running: StudyRunning, workers: int = 1) -> list[CellReport]:
    return list(run_cells(running.plan.cells, running.folder, RayEngine(workers=workers)))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_cell_of_a_killed_worker_runs_again_and_the_study_is_that_of_local_workers(
    tmp_path: Path, tiny_settings: list[str], two_workers: None, caplog: pytest.LogCaptureFixture
) -> None:
    path = study_file(tmp_path, [*tiny_settings, *LONG], seeds=[0])
    running = StudyRunning(read_study(path), tmp_path / "ray", engine=RayEngine())
    assert running.workers == 2
    killed: str | None = None
    processes: set[int] = set()
    for report in running.reports():
        if report.state == "running":
            processes.add(process_of(report.cell))
        if report.state == "running" and killed is None and has_checkpoint(report.cell):
            os.kill(parent_of(process_of(report.cell)), signal.SIGKILL)
            killed = report.cell.key
        assert report.state != "failed", report.error
    on_ray = running.finish()
    assert "its worker was lost on" in caplog.text
    assert "running it again (1 of 3)" in caplog.text
    for process in processes:
        wait_for_end(process)
    log = (tmp_path / "ray" / "logs" / f"{killed}.log").read_text()
    assert int(log.partition("step ")[2].partition("/")[0]) > 1  # it resumed from a checkpoint
    assert not list((tmp_path / "ray").glob(".cluster-*"))
    # Cells that have finished on the cluster do not run again here ...
    assert not StudyRunning(read_study(path), tmp_path / "ray").waiting
    # ... and have the same results as cells that were trained here.
    local = StudyRunning(read_study(path), tmp_path / "local", workers=2)
    assert {report.state for report in local.reports()} == {"started", "running", "done"}
    assert without_times(local.finish()) == without_times(on_ray)
    for one, other in zip(local.plan.cells, running.plan.cells, strict=True):
        assert results(one.folder) == results(other.folder)


def test_cells_that_have_finished_here_do_not_run_again(small_study: Done, two_workers: None) -> None:
    running = StudyRunning(read_study(small_study.path), small_study.folder, engine=RayEngine())
    assert not list(running.reports())
    assert without_times(running.finish()) == without_times(small_study.content)


def test_a_node_that_does_not_see_the_folder_sends_its_run(
    tmp_path: Path, tiny_settings: list[str], two_workers: None, small_study: Done, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_engine, "write_token", lambda study: study / "not written")
    monkeypatch.setattr(ray_engine, "CHUNK_BYTES", 100_000)  # weights are sent in several parts
    (report,) = [r for r in run_with_ray(small(tmp_path, tiny_settings)) if r.state in ("done", "failed")]
    assert report.state == "done", report.error
    key = report.cell.key
    assert results(report.cell.folder) == results(small_study.folder / "cells" / key)
    assert f"{cache_folder() / 'cells' / key}" in (tmp_path / "out" / "logs" / f"{key}.log").read_text()
    assert not list((cache_folder() / "cells").glob(f"{key}*"))
    assert file_names(report.cell.folder) == file_names(small_study.folder / "cells" / key) - {".lock"}


def file_names(run: Path) -> set[str]:
    """The names of TensorBoard's files have the time and the process."""
    return {path.name for path in run.rglob("*") if "tfevents" not in path.name}


def test_a_node_without_a_file_or_with_another_one_fails_the_cell_and_is_named(
    tmp_path: Path, tiny_settings: list[str], two_workers: None
) -> None:
    text = "text,opinion\ngood,positive\nbad,negative\n"
    files = [tmp_path / "missing.csv", tmp_path / "changed.csv"]
    for file in files:
        file.write_text(text)
    variants = {file.stem: {"tasks.opinion.dev": str(file), "max_length": 32 + i} for i, file in enumerate(files)}
    running = small(tmp_path, [*tiny_settings, "train.steps_per_epoch=2"], variants=variants)
    files[0].unlink()
    files[1].write_text(text.replace("bad", "worse"))
    ends = {report.cell.variant: report for report in run_with_ray(running, 2) if report.error is not None}
    assert "missing.csv: no such file" in (ends["missing"].error or "")
    assert f"on {os.uname().nodename}" in (tmp_path / "out" / "logs" / f"{ends['missing'].cell.key}.log").read_text()
    assert "other data, encoder, teachers or plug-ins than the study was planned with" in (ends["changed"].error or "")
    for report in ends.values():
        assert (tmp_path / "out" / "failed" / report.cell.key / "error.txt").read_text() == report.error
        assert not report.cell.done


PLUGIN = """
import polytask
from polytask.samplers.round_robin import RoundRobin

class Mine(RoundRobin):
    pass

polytask.register("sampler", "mine", Mine)
"""


def test_a_node_runs_plugins_that_were_trusted_here_and_no_others(
    tmp_path: Path, tiny_settings: list[str], two_workers: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The workers' own configuration folder is another one: they were started before the variable was set."""
    monkeypatch.setenv("POLYTASK_CONFIG", str(tmp_path / "config"))
    (tmp_path / "mine.py").write_text(PLUGIN)
    more = {"plugins": [str(tmp_path / "mine.py")], "sampler": "mine"}
    path = study_file(tmp_path, [*tiny_settings, "train.steps_per_epoch=2"], seeds=[0, 1], variants={"mine": more})
    running = StudyRunning(read_study(path), tmp_path / "out", trust_plugins=True)
    first, second = running.plan.cells
    ends = [*run_cells([first], running.folder, RayEngine(workers=1))]
    assert ends[-1].state == "done", ends[-1].error
    monkeypatch.setattr(ray_engine, "trusted_plugins", list)
    ends = [*run_cells([second], running.folder, RayEngine(workers=1))]
    assert "mine.py: this plug-in is not trusted" in (ends[-1].error or "")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_after_some_lost_workers_a_cell_has_failed_and_can_be_resumed(
    tmp_path: Path, tiny_settings: list[str], two_workers: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_engine, "RETRIES", 1)
    running = small(tmp_path, [*tiny_settings, *LONG])
    ends, killed = [], set[int]()
    for report in run_cells(running.plan.cells, running.folder, RayEngine(workers=1)):
        if report.state == "running" and process_of(report.cell) not in killed and report.step < report.cell.steps:
            killed.add(process_of(report.cell))
            os.kill(process_of(report.cell), signal.SIGKILL)  # as the kernel does when memory is used up
        ends += [report] if report.state in ("done", "failed") else []
    assert [report.state for report in ends] == ["failed"]
    assert len(killed) == 2
    assert "its worker was lost 2 times, the last time on" in (ends[0].error or "")
    assert (ends[0].cell.folder / "checkpoints").is_dir()
    *_, last = run_cells(running.plan.cells, running.folder, LocalEngine())
    assert last.state == "done", last.error
    log = (tmp_path / "out" / "logs" / f"{last.cell.key}.log").read_text()
    assert int(log.partition("step ")[2].partition("/")[0]) >= ends[0].step


# --- refusals ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workers": 0}, "--workers: must be at least 1, found 0"),
        ({"cpus_per_cell": 0}, "--cpus-per-cell: must be greater than 0, found 0"),
        ({"gpus_per_cell": 1.5}, r"--gpus-per-cell: must be in \[0, 1\] or a whole number, found 1.5"),
        ({"gpus_per_cell": -1}, r"--gpus-per-cell: must be in \[0, 1\] or a whole number, found -1"),
    ],
)
def test_impossible_numbers(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        RayEngine(**options)


def test_cells_that_no_node_has_room_for(two_workers: None) -> None:
    with pytest.raises(UserError, match=r"needs 1 CPU and 1 GPU, but no node .* largest one has 2 CPUs and 0 GPUs"):
        RayEngine(gpus_per_cell=1)
    with pytest.raises(UserError, match="needs 3 CPUs and 0 GPUs"):
        RayEngine(cpus_per_cell=3)
    assert RayEngine(cpus_per_cell=2).workers == 1
    assert RayEngine(cpus_per_cell=0.25).workers == 8
    assert RayEngine(workers=5).workers == 5  # the others wait


def test_a_node_with_another_version_is_refused(
    tmp_path: Path, tiny_settings: list[str], two_workers: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = small(tmp_path, tiny_settings)
    monkeypatch.setattr(ray_engine, "code_fingerprint", lambda: "another")
    with pytest.raises(UserError, match=f"{os.uname().nodename}: this node of the cluster has another version"):
        run_with_ray(running)


def test_a_node_without_polytask_is_refused(
    tmp_path: Path, tiny_settings: list[str], two_workers: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker of a module that only this process can import."""
    (tmp_path / "only_here.py").write_text(
        "class RayWorker:\n    def __init__(self, *_): pass\n    def about(self): pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(ray_engine, "RayWorker", importlib.import_module("only_here").RayWorker)
    with pytest.raises(UserError, match=r"cannot start a worker: ModuleNotFoundError: .*only_here.*; install the same"):
        run_with_ray(small(tmp_path, tiny_settings))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_cell_that_waits_for_room_gets_a_worker_that_is_free(
    tmp_path: Path, tiny_settings: list[str], two_workers: None
) -> None:
    """After a node was lost, the workers that are left hold all the room that there is."""
    running = small(tmp_path, [*tiny_settings, "train.steps_per_epoch=2"], seeds=[0, 1, 2])
    ends = [report for report in run_with_ray(running, workers=3) if report.state in ("done", "failed")]
    assert [report.state for report in ends] == ["done"] * 3


def test_a_worker_on_a_node_imports_neither_torch_nor_ray() -> None:
    program = "import sys, polytask.studies.ray_worker as _; print({'torch', 'ray', 'numpy'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


# --- the command ------------------------------------------------------------------------------------------------------
@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_stopped_command_leaves_no_process_and_goes_on(
    tmp_path: Path, tiny_settings: list[str], stop: signal.Signals
) -> None:
    """It is started in a folder with files that are called like modules: none of them may run."""
    path = study_file(tmp_path, [*tiny_settings, *LONG, "train.steps_per_epoch=200"], seeds=[0])
    here, marker = tmp_path / "here", tmp_path / "it ran"
    here.mkdir()
    for name in ("difflib", "json", "random", "pkgutil", "torch", "yaml", "polytask", "ray"):
        (here / f"{name}.py").write_text(f"open({str(marker)!r}, 'a').write(__name__)\nraise SystemExit(9)\n")
    command = [sys.executable, "-P", "-m", "polytask", "compare", str(path), "--study", "out", "--engine", "ray"]
    command += ["--workers", "2"]
    process = subprocess.Popen(command, cwd=here, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    running = StudyRunning(read_study(path), here / "out2")  # for its cells
    cells = [here / "out" / "cells" / cell.key for cell in running.plan.cells]
    journals = [cell / "metrics.jsonl" for cell in cells]
    while not all(j.exists() and j.read_text().count('"kind": "step"') > 2 for j in journals):
        with suppress(subprocess.TimeoutExpired):
            process.wait(0.02)
        assert process.poll() is None, process.communicate()
    children = descendants(process.pid)
    workers = [child for child in children if "polytask.cli.worker" in command_of(child)]
    assert len(workers) == 2
    if stop == signal.SIGKILL:
        children = workers  # Ray's own processes end a minute later
    process.send_signal(stop)
    said, errors = process.communicate()
    for child in children:
        wait_for_end(child)
    assert not marker.exists()
    if stop != signal.SIGKILL:
        assert process.returncode == 128 + stop, errors
        assert "0 of 2 runs have finished; the page shows these" in said
        assert not list((here / "out").glob(".cluster-*"))
    assert all(list((cell / "checkpoints").glob("step-*")) for cell in cells)
    steps = [journal.read_text().count('"kind": "step"') for journal in journals]
    again = subprocess.run([*command[:-4], "--workers", "2"], cwd=here, capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stderr
    for cell, step in zip(cells, steps, strict=True):
        log = (here / "out" / "logs" / f"{cell.name}.log").read_text()
        assert int(log.partition("step ")[2].partition("/")[0]) >= step - 1 > 0


def command_of(process: int) -> str:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def descendants(process: int) -> list[int]:
    """The process, those that it has started, those that they have started, and so on."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                parents[int(entry.name)] = parent_of(int(entry.name))
            except OSError:
                continue
    found = [process]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found[1:]
