"""Runs per minute are measured, survive a kill, and are on the page; so is the page of any half-finished study."""

import shutil
from pathlib import Path

import pytest

from polytask.studies.compare import StudyRunning
from polytask.studies.study import read_study
from polytask.studies.table import pace
from polytask.studies.throughput import TIMES, finish_times, throughput

from .conftest import Done


def test_of_a_study(small_study: Done) -> None:
    (measured,) = small_study.content["throughput"]
    assert (measured["workers"], measured["runs"]) == (2, 4)
    assert measured["runs_per_minute"] == pytest.approx(60 * 4 / measured["seconds"])
    (sentence,) = pace(small_study.content)
    assert sentence.startswith("2 workers finished 4 runs in ")
    assert sentence.endswith(" runs per minute.")
    assert sentence in (small_study.folder / "report.html").read_text()
    assert sentence in (small_study.folder / "study.md").read_text()


def test_times_of_several_starts(tmp_path: Path) -> None:
    """The time between two starts does not count, and a line that was cut off is left out."""
    lines = [(2, 0.0, 30.0), (2, 0.0, 60.0), (2, 900.0, 60.0), (4, 2000.0, 30.0)]
    texts = [f'{{"run": "a", "workers": {w}, "started": {start}, "seconds": {s}}}' for w, start, s in lines]
    (tmp_path / TIMES).write_text("\n".join([*texts, '{"run": "b", "work']))
    assert throughput(tmp_path) == [
        {"workers": 2, "runs": 3, "seconds": 120.0, "runs_per_minute": 1.5},
        {"workers": 4, "runs": 1, "seconds": 30.0, "runs_per_minute": 2.0},
    ]
    assert throughput(tmp_path / "none") == []


def test_when_each_run_ended(tmp_path: Path) -> None:
    """In seconds of work: the time between two starts does not count."""
    lines = [("a", 0.0, 30.0), ("b", 0.0, 60.0), ("c", 900.0, 5.0)]
    texts = [f'{{"run": "{run}", "workers": 1, "started": {start}, "seconds": {s}}}' for run, start, s in lines]
    (tmp_path / TIMES).write_text("\n".join(texts))
    assert finish_times(tmp_path) == {"a": 30.0, "b": 60.0, "c": 65.0}
    assert finish_times(tmp_path / "none") == {}


@pytest.mark.parametrize("left", ["", "recipe.yaml", "metrics.jsonl", "predictions", "everything but the summary"])
def test_a_study_that_was_cut_off_has_a_page(small_study: Done, tmp_path: Path, left: str) -> None:
    """Whatever the last run had written, and whatever the earlier page was."""
    folder = tmp_path / "out"
    shutil.copytree(small_study.folder, folder)
    for name in ("study.json", "study.md", "report.html"):
        (folder / name).unlink()
    running = StudyRunning(read_study(small_study.path), folder)
    run = running.plan.cells[-1].folder
    for path in list(run.iterdir()):
        if path.name == "summary.json" or not (path.name == left or left.startswith("everything")):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    content = running.finish()
    assert [cell["state"] for cell in content["variants"]["bi"]["cells"]] == ["done", "missing"]
    assert "1 of 4 runs is missing" in (folder / "report.html").read_text()
    assert content["comparisons"]


def test_a_study_without_any_run_has_a_page(small_study: Done, tmp_path: Path) -> None:
    StudyRunning(read_study(small_study.path), tmp_path / "new").finish()
    assert "No run has finished" in (tmp_path / "new" / "report.html").read_text()
    assert len(StudyRunning(read_study(small_study.path), tmp_path / "new").waiting) == 4  # the folder is its own
