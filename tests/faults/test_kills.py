"""Killed by SIGKILL at any moment, a run goes on and ends as if nothing had happened, to the bit."""

import json
import os
import random
import shutil
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from .conftest import LONG, STEPS, Starter, ending, write_recipe

KILLS = 100 if LONG else 5
BOTH_WAYS = pytest.mark.parametrize("background", [False, True], ids=["in the caller", "in the background"])
"""Checkpoints are written in the background on a GPU."""


@BOTH_WAYS
def test_killed_at_random_moments(
    starter: Starter, recipe: Path, straight: dict[str, Any], tmp_path: Path, background: bool
) -> None:
    run, kills, finished, steps = tmp_path / "run", 0, 0, set()
    started = time.monotonic()
    starter.goes_on(recipe, tmp_path / "measured")
    whole = time.monotonic() - started
    draw = random.Random(5)
    while kills < KILLS:
        child = starter.steps(recipe, run, resume=run.exists(), background=background)
        code = child.wait(draw.uniform(0.1, 1.0) * whole)
        if code is None:
            with suppress(ProcessLookupError):  # it may have ended just now, of its own
                os.kill(child.pid, signal.SIGKILL)
            code = child.wait()
        if code == -signal.SIGKILL:
            kills += 1
            steps |= {p.name for p in run.glob("checkpoints/step-*")}
        else:
            assert code == 0, child.said
            assert ending(run) == straight
            shutil.rmtree(run)
            finished += 1
    starter.goes_on(recipe, run)
    assert ending(run) == straight
    assert not list(run.glob("checkpoints/.*"))
    print(f"{kills} kills, {finished + 1} runs finished; killed with {sorted(steps)} there")


def events(starter: Starter, recipe: Path, run: Path, resume: bool = False) -> list[str]:
    """Everything a run does to the files of its folder, in order."""
    listed = run.parent / "events.txt"
    child = starter.steps(recipe, run, resume=resume, faults={"record": str(listed)})
    assert child.wait() == 0, child.said
    return listed.read_text().splitlines()


def killed_at(starter: Starter, recipe: Path, run: Path, point: int, resume: bool = False) -> None:
    child = starter.steps(recipe, run, resume=resume, faults={"kill_at": point})
    assert child.wait() == -signal.SIGKILL, child.said


def test_killed_at_any_point_at_which_it_touches_a_file(starter: Starter, tmp_path: Path) -> None:
    """The short set: every eighth point of the start of the folder, a checkpoint and the removal of the oldest one."""
    recipe = write_recipe(tmp_path, epochs=1)
    seen = events(starter, recipe, tmp_path / "straight")
    straight = ending(tmp_path / "straight")
    first = next(n for n, event in enumerate(seen, 1) if "checkpoints" in event)
    third = next(n for n, event in enumerate(seen, 1) if "/.step-3." in event)
    last = next(n for n, event in enumerate(seen, 1) if event.startswith("os.rmdir") and n > third)
    points = range(1, len(seen) + 1) if LONG else [*range(1, first), *range(third, last + 2)]
    assert first < third < last
    assert len(points) > 35
    for point in points if LONG else points[::16]:
        run = tmp_path / f"run-{point}"
        killed_at(starter, recipe, run, point)
        starter.goes_on(recipe, run)
        assert ending(run) == straight, seen[point - 1]
        shutil.rmtree(run)


@BOTH_WAYS
def test_killed_while_it_writes_the_files_after_the_last_step(
    starter: Starter, recipe: Path, tmp_path: Path, background: bool
) -> None:
    """Model, predictions, summary, report, and the removal of the checkpoints: `--resume` ends with the same files."""
    listed = tmp_path / "events.txt"
    child = starter.train(recipe, tmp_path / "straight", faults={"record": str(listed)})
    assert child.wait() == 0, child.said
    seen = listed.read_text().splitlines()
    first = next(n for n, event in enumerate(seen, 1) if "predictions" in event)
    renamed = next(n for n, event in enumerate(seen, 1) if event.startswith("os.rename /.checkpoints."))
    assert first + 20 < renamed < len(seen) - 10
    for point in range(first, len(seen) + 1) if LONG else [first + 12, renamed, renamed + 5]:
        run = tmp_path / f"run-{point}"
        child = starter.train(recipe, run, faults={"kill_at": point}, background=background)
        assert child.wait() == -signal.SIGKILL, child.said
        child = starter.train(recipe, run, "--resume")
        assert child.wait() == 0, child.said
        assert finished(run) == finished(tmp_path / "straight"), seen[point - 1]
        shutil.rmtree(run)


def test_unfinished_files_are_removed_by_the_next_write(starter: Starter, recipe: Path, tmp_path: Path) -> None:
    """In three places of a run: its start, its journal when it goes on, and its summary."""
    run = tmp_path / "run"
    for name in ("recipe.yaml", "metrics.jsonl", "summary.json"):
        more = ["--resume"] if run.exists() else []
        child = starter.train(recipe, run, *more, faults={"halt_at": [rf"/\.{name}\.[0-9a-f]{{32}}/"]})
        child.wait_until_halted()
        os.kill(child.pid, signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL
        assert len(list(run.glob(f".{name}.*"))) == 1, name
        if name == "recipe.yaml":
            starter.goes_on(recipe, run)
    assert len(list(run.glob(".*.*"))) == 1  # that of the summary: the others went
    child = starter.train(recipe, run, "--resume")
    assert child.wait() == 0, child.said
    assert finished(run)["left over"] == []


def finished(run: Path) -> dict[str, Any]:
    """What a run leaves for others, times and places aside."""
    files = [path for folder in ("model", "predictions") for path in sorted((run / folder).iterdir())]
    summary = json.loads((run / "summary.json").read_text())
    return {
        **{path.relative_to(run).as_posix(): path.read_bytes() for path in files if path.name != "README.md"},
        "scores": summary["evaluations"],
        "best": summary["best"],
        "report": (run / "report.html").is_file(),
        "checkpoints": (run / "checkpoints").exists(),
        "left over": [path.name for path in run.rglob(".*") if path.name != ".lock"],
    }


def test_killed_at_any_point_of_resuming(
    starter: Starter, recipe: Path, straight: dict[str, Any], tmp_path: Path
) -> None:
    """The newest checkpoint is damaged, a killed process left half of one, and the journal is ahead."""
    stopped = tmp_path / "stopped"
    checkpoints = stopped / "checkpoints"
    child = starter.steps(recipe, stopped, faults={"halt_at": ["/step-6$"]})
    child.wait_until_halted()
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    (checkpoints / "step-5" / "model.safetensors").write_bytes(b"nothing")
    shutil.copytree(stopped, tmp_path / "listed")
    seen = events(starter, recipe, tmp_path / "listed", resume=True)
    last = next(n for n, event in enumerate(seen, 1) if event.startswith("os.rename") and event.endswith("/step-5"))
    assert any("damaged-step-5" in event for event in seen[:last])
    for point in range(1, last + 2) if LONG else range(1, last + 2, 32):
        run = tmp_path / f"run-{point}"
        shutil.copytree(stopped, run)
        killed_at(starter, recipe, run, point, resume=True)
        starter.goes_on(recipe, run)
        assert ending(run) == straight, seen[point - 1]
        assert {p.name for p in run.glob("checkpoints/*")} >= {f"step-{STEPS - 1}", f"step-{STEPS}"}
        assert not list(run.glob("checkpoints/damaged-*")) + list(run.glob("checkpoints/.*"))
        shutil.rmtree(run)
