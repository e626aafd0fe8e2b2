"""Cells run in worker processes: a failed one is moved, a dead worker is replaced, and a killed study resumes."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from polytask.studies.cells import Cell
from polytask.studies.compare import StudyRunning
from polytask.studies.local_engine import LocalEngine
from polytask.studies.runner import run_cells
from polytask.studies.study import read_study
from polytask.studies.worker import last_lines

from .conftest import Done, study_file


def test_every_cell_is_started_and_ends(small_study: Done) -> None:
    for state in ("started", "done"):
        cells = {(r.cell.variant, r.cell.seed) for r in small_study.reports if r.state == state}
        assert cells == {("cosine", 0), ("cosine", 1), ("bi", 0), ("bi", 1)}
    running = 0
    for report in small_study.reports:
        running += {"started": 1, "done": -1}.get(report.state, 0)
        assert running <= 2


def test_a_failed_cell_is_moved_and_tried_again(tmp_path: Path, tiny_settings: list[str]) -> None:
    dev = tmp_path / "dev.csv"
    dev.write_text("text,opinion\ngood,positive\nbad,negative\n")
    more = [*tiny_settings, f"tasks.opinion.dev={dev}"]
    variants = {"one": {}, "two": {"max_length": 32}}
    running = StudyRunning(read_study(study_file(tmp_path, more, variants=variants, seeds=[0])), tmp_path / "out", 1)
    states = {}
    for report in running.reports():
        states[report.cell.variant] = report
        if report.state == "done":
            dev.write_text("text,opinion\nbroken,\n")  # under the running study: the second cell must fail
    assert states["one"].state == "done"
    assert not (states["one"].cell.folder / "checkpoints").exists()  # its model is there; a study has many runs
    assert (states["one"].cell.folder / "model" / "model.safetensors").is_file()
    assert states["two"].state == "failed"
    assert "dev.csv, line 2, column 'opinion'" in (states["two"].error or "")
    key = states["two"].cell.key
    assert (tmp_path / "out" / "failed" / key / "log.txt").is_file()
    content = running.finish()
    assert content["variants"]["two"]["cells"][0]["state"] == "failed"
    assert "two" in (tmp_path / "out" / "report.html").read_text()
    dev.write_text("text,opinion\ngood,positive\nbad,negative\n")
    again = StudyRunning(read_study(tmp_path / "study.yaml"), tmp_path / "out", 1)
    assert "two" in {cell.variant for cell in again.waiting}


@pytest.mark.slow
def test_a_cell_that_is_killed_goes_on_where_it_was(tmp_path: Path, tiny_settings: list[str]) -> None:
    more = [*tiny_settings, "train.save_every=1", "train.steps_per_epoch=40"]
    running = StudyRunning(read_study(study_file(tmp_path, more, seeds=[0])), tmp_path / "out")
    killed = None
    for report in running.reports():
        if report.state == "running" and killed is None:
            killed = report.cell
            os.kill(int((killed.folder / ".lock").read_text().split()[1]), signal.SIGKILL)
        elif killed is not None and report.cell == killed:
            assert report.state == "failed"
            assert "killed by signal 9" in (report.error or "")
            break
    assert killed is not None
    done = json.loads((killed.folder / "metrics.jsonl").read_text().splitlines()[-1])["step"]
    assert (killed.folder / "checkpoints").is_dir()
    assert (tmp_path / "out" / "failed" / killed.key / "error.txt").read_text() == report.error
    list(run_cells([killed], tmp_path / "out", LocalEngine()))
    assert killed.done
    log = (tmp_path / "out" / "logs" / f"{killed.key}.log").read_text()
    first = int(log.partition("step ")[2].partition("/")[0])
    assert done <= first <= done + 2  # the first step it told of is the one that was due


def test_a_cell_runs_no_code_of_the_working_directory(
    tmp_path: Path, tiny_settings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    more = [*tiny_settings, "train.steps_per_epoch=2"]
    running = StudyRunning(read_study(study_file(tmp_path, more, seeds=[0])), tmp_path / "out")
    here, marker = tmp_path / "here", tmp_path / "it ran"
    here.mkdir()
    for name in ("difflib", "json", "random", "pkgutil", "torch", "yaml", "polytask"):
        (here / f"{name}.py").write_text(f"open({str(marker)!r}, 'a').write(__name__)\nraise SystemExit(9)\n")
    monkeypatch.chdir(here)
    reports = list(run_cells(running.waiting[:1], tmp_path / "out", LocalEngine()))
    assert not marker.exists(), marker.read_text()
    assert reports[-1].state == "done", reports[-1].error


@pytest.mark.slow
@pytest.mark.parametrize("stop", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_study_has_a_page_and_goes_on(tmp_path: Path, tiny_settings: list[str], stop: signal.Signals) -> None:
    path = study_file(tmp_path, [*tiny_settings, "train.save_every=2"], seeds=[0])
    command = [sys.executable, "-m", "polytask", "compare", str(path), "--study", str(tmp_path / "out")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("done"):
            os.killpg(process.pid, stop)
            break
    said, _ = process.communicate()
    if stop == signal.SIGTERM:
        assert process.returncode == 143
    else:
        said = subprocess.run([*command, "--page-only"], capture_output=True, text=True, check=True).stdout
    assert "1 of 2 runs have finished; the page shows these" in said
    page = (tmp_path / "out" / "report.html").read_text()
    assert "This study has not finished: 1 of 2 runs is missing." in page
    assert "1 worker finished 1 run in " in page
    running = StudyRunning(read_study(path), tmp_path / "out")
    assert len(running.waiting) == 1
    assert [r.state for r in running.reports() if r.state != "running"] == ["started", "done"]
    assert all(cell["state"] == "done" for v in running.finish()["variants"].values() for cell in v["cells"])


@pytest.mark.slow
def test_a_worker_that_dies_is_replaced(tmp_path: Path, tiny_settings: list[str]) -> None:
    """Killed while it trains, it fails its own run only; killed while it is idle, nobody notices."""
    running = StudyRunning(read_study(study_file(tmp_path, tiny_settings)), tmp_path / "out")
    ends: dict[str, str] = {}
    for report in running.reports():
        if report.state in ("done", "failed"):
            ends[report.cell.key] = report.state
        if report.state == "running" and not ends:
            os.kill(pid_of(report.cell), signal.SIGKILL)
        if report.state == "done" and list(ends.values()) == ["failed", "done"]:
            os.kill(pid_of(report.cell), signal.SIGKILL)  # the next run has not been started
            os.waitid(os.P_PID, pid_of(report.cell), os.WEXITED | os.WNOWAIT)
    assert list(ends.values()) == ["failed", "done", "done", "done"]
    processes = [pid_of(cell) for cell in running.plan.cells]
    assert len({*processes}) == 3
    assert processes[2] == processes[3]


def pid_of(cell: Cell) -> int:
    """The process that has locked the cell's folder, or did so last."""
    return int((cell.folder / ".lock").read_text().split()[1])


def test_closing_the_iterator_stops_the_processes(tmp_path: Path, tiny_settings: list[str]) -> None:
    running = StudyRunning(read_study(study_file(tmp_path, tiny_settings)), tmp_path / "out")
    reports = run_cells(running.plan.cells, tmp_path / "out", LocalEngine(2))
    next(reports)
    reports.close()
    assert len(running.waiting) == 4


def test_the_end_of_a_log(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("\n".join(map(str, range(100))))
    assert last_lines(tmp_path / "log").splitlines()[-1] == "99"
    assert len(last_lines(tmp_path / "log").splitlines()) == 12
