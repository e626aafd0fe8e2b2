"""A run goes on as what it was: another recipe, other data, or a second process in its folder are refused."""

import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from polytask import UserError, read_recipe, start_training
from polytask.runs.folder import RunFolder
from polytask.runs.resume import recipe_changes

from .conftest import STEPS, Starter, ending, write_recipe


@pytest.fixture
def run(stopped: Path, tmp_path: Path) -> Path:
    return shutil.copytree(stopped, tmp_path / "run")


# --- changes ----------------------------------------------------------------------------------------------------------
def test_another_recipe_is_refused_with_every_difference(run: Path, recipe: Path) -> None:
    more = ["optimizer.lr=0.002", "policy=sum", "train.keep=3", "tasks.one.weight=2"]
    with pytest.raises(UserError) as refused:
        start_training(read_recipe(recipe, more), run, resume=True)
    said = str(refused.value).splitlines()
    assert said[0] == f"{run}: the run was started with another recipe:"
    assert said[1:-1] == [
        "  tasks.one.weight: was 1.0, is 2.0",
        '  policy: was "replay", is "sum"',
        "  policy.size: was 8, is not set",
        "  optimizer.lr: was 0.001, is 0.002",
        "  train.keep: was 2, is 3",
    ]
    assert "--allow-change" in said[-1]
    assert (
        start_training(read_recipe(recipe, ["optimizer.lr=1e-3"]), run, resume=True).session.step == 6
    )  # 0.001, as it was


def test_a_run_from_before_encodings_were_looked_for(tmp_path: Path, recipe: Path) -> None:
    """Its recipe says utf-8 where nobody had asked for it."""
    old = {"base": str(recipe), "tasks": {name: {"encoding": "utf-8"} for name in ("one", "two")}}
    (tmp_path / "recipe.yaml").write_text(json.dumps(old))
    assert recipe_changes(RunFolder(tmp_path), read_recipe(recipe)) == []
    (change,) = recipe_changes(RunFolder(tmp_path), read_recipe(recipe, ["tasks.one.encoding=cp1252"]))
    assert change == 'tasks.one.encoding: was "utf-8", is "cp1252"'


def test_allowed_changes_are_applied_and_recorded(run: Path, recipe: Path) -> None:
    changed = read_recipe(recipe, ["train.epochs=3", "train.keep=3"])
    running = start_training(changed, run, resume=True, allow_change=True)
    assert [report.step for report in running.steps()] == list(range(7, 13))
    assert read_recipe(run / "recipe.yaml") == changed
    noted = json.loads((run / "environment.json").read_text())["changes"]
    assert noted == [{"after_step": 6, "changes": ["train.epochs: was 2, is 3", "train.keep: was 2, is 3"]}]
    assert start_training(changed, run, resume=True).session.step == 12  # from now on it is the run's own recipe


def test_a_change_that_does_not_fit_the_weights_is_refused(run: Path, recipe: Path) -> None:
    with pytest.raises(UserError, match=r"step-6: does not fit the changed recipe: (?s:.*)size mismatch"):
        start_training(read_recipe(recipe, ["encoder.hidden=32"]), run, resume=True, allow_change=True)
    with pytest.raises(
        UserError, match=r"step-6: does not fit the changed recipe: .the checkpoint's optimizer is AdamW, not Lion"
    ):
        start_training(read_recipe(recipe, ["optimizer=lion"]), run, resume=True, allow_change=True)
    assert read_recipe(run / "recipe.yaml") == read_recipe(recipe)


def test_other_data_is_refused_by_file(tmp_path: Path) -> None:
    recipe, run = write_recipe(tmp_path), tmp_path / "run"
    next(start_training(read_recipe(recipe), run).steps())
    with (tmp_path / "two.csv").open("a") as file:
        file.write("one more film,yes\n")
    with pytest.raises(UserError) as refused:
        start_training(read_recipe(recipe), run, resume=True)
    said = str(refused.value).splitlines()
    assert said[0] == f"{run}: the run was started with other data:"
    assert said[1:-1] == [f"  tasks.two.{s}: {tmp_path / 'two.csv'}: had 16 rows, has 17" for s in ("train", "dev")]
    running = start_training(read_recipe(recipe), run, resume=True, allow_change=True)
    assert len(list(running.steps())) == STEPS - 1
    about = json.loads((run / "environment.json").read_text())
    assert about["data"]["two"]["train"]["rows"] == 17
    assert len(about["changes"][0]["changes"]) == 2
    start_training(read_recipe(recipe), run, resume=True)


def test_another_encoder_under_the_same_name_is_refused(tiny_run: Any, recipe: Path, tmp_path: Path) -> None:
    encoder = shutil.copytree(tiny_run.folder / "model", tmp_path / "encoder")
    made = read_recipe(recipe, [f"encoder={encoder}"])
    next(start_training(made, tmp_path / "run").steps())
    weights = bytearray((encoder / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (encoder / "model.safetensors").write_bytes(weights)
    with pytest.raises(UserError, match="encoder: its weights have changed"):
        start_training(made, tmp_path / "run", resume=True)


# --- two at once ------------------------------------------------------------------------------------------------------
def test_a_second_process_is_refused(starter: Starter, recipe: Path, straight: dict[str, Any], tmp_path: Path) -> None:
    run = tmp_path / "run"
    child = starter.steps(recipe, run, faults={"halt_at": ["/step-3$"]})
    child.wait_until_halted()
    with pytest.raises(UserError, match=f"{run}: process {child.pid} on .* is working on this run"):
        start_training(read_recipe(recipe), run, resume=True)
    with pytest.raises(UserError, match="the folder already contains a run"):
        start_training(read_recipe(recipe), run)
    child.continues()
    assert child.wait() == 0, child.said  # nothing happened to it
    assert ending(run) == straight
    assert start_training(read_recipe(recipe), run, resume=True).session.step == STEPS  # the lock went with its process


def test_of_two_that_start_together_one_is_refused(starter: Starter, recipe: Path, tmp_path: Path) -> None:
    """Both have seen an empty folder; the other one has just made it its own."""
    run = tmp_path / "run"
    child = starter.steps(recipe, run, faults={"halt_at": [r"/\.recipe\.yaml\."]})
    child.wait_until_halted()
    with pytest.raises(UserError, match=f"process {child.pid} on .* is working on this run"):
        start_training(read_recipe(recipe), run)
    child.continues()
    assert child.wait() == 0, child.said


def test_a_refused_start_holds_no_lock(run: Path, recipe: Path, starter: Starter) -> None:
    with pytest.raises(UserError, match="another recipe"):
        start_training(read_recipe(recipe, ["seed=9"]), run, resume=True)
    starter.goes_on(recipe, run)


def test_a_process_may_start_its_own_run_anew(recipe: Path, tmp_path: Path) -> None:
    """As in a notebook, where nothing says that the first one is not wanted any more."""
    first = start_training(read_recipe(recipe), tmp_path / "run")
    next(first.steps())
    assert start_training(read_recipe(recipe), tmp_path / "run", resume=True).session.step == 1


def test_a_lock_held_by_a_child_of_a_killed_process_is_waited_for(recipe: Path, run: Path) -> None:
    """A child that is between fork and exec has the lock of a process that is gone, for a moment."""
    (run / ".lock").write_text("")
    holder = subprocess.Popen(["sleep", "60"])
    (run / ".lock").write_text(f"process {holder.pid} on {socket.gethostname()}")
    child = subprocess.Popen(["flock", str(run / ".lock"), "sleep", "60"], start_new_session=True)
    while not held(run / ".lock"):
        pass
    with pytest.raises(UserError, match=f"process {holder.pid} on .* is working on this run"):
        start_training(read_recipe(recipe), run, resume=True)
    holder.kill()
    holder.wait()
    threading.Timer(0.2, os.killpg, [child.pid, signal.SIGKILL]).start()
    assert start_training(read_recipe(recipe), run, resume=True).session.step == 6
    child.wait()


def held(lock: Path) -> bool:
    with lock.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
