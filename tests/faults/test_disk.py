"""A disk that is full: one clear message, whole checkpoints behind it, and a run that goes on when there is room."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from polytask import UserError, read_recipe, start_training
from polytask.training.checkpoint import newest, numbered

from .conftest import LONG, STEPS, Starter, ending
from .test_kills import BOTH_WAYS, events


@BOTH_WAYS
def test_full_at_every_point_at_which_it_writes(
    starter: Starter, recipe: Path, straight: dict[str, Any], tmp_path: Path, background: bool
) -> None:
    """From there on nothing can be written. The short set takes a few points of each kind."""
    seen = events(starter, recipe, tmp_path / "listed")
    writes = [n for n, event in enumerate(seen, 1) if event.startswith(("open", "os.mkdir"))]
    for point in writes if LONG else writes[:12:6] + writes[50:90:20]:
        run = tmp_path / f"run-{point}"
        child = starter.train(recipe, run, faults={"full_from": point}, background=background)
        assert child.wait() == 1, (seen[point - 1], child.said)
        assert "error: " in child.said
        assert "No space left on device" in child.said
        assert "--resume" in child.said
        assert "Traceback" not in child.said
        starter.goes_on(recipe, run)
        assert ending(run) == straight, seen[point - 1]
        shutil.rmtree(run)


def test_a_file_that_may_not_grow(starter: Starter, recipe: Path, straight: dict[str, Any], tmp_path: Path) -> None:
    """The limit strikes inside the library that writes tensors, in the middle of a file."""
    run = tmp_path / "run"
    child = starter.train(recipe, run, file_limit=20_000)
    assert child.wait() == 1, child.said
    assert "step-1: the checkpoint could not be written: " in child.said
    assert "File too large" in child.said
    assert "Traceback" not in child.said
    assert not list(run.glob("checkpoints/*")) + list(run.glob("checkpoints/.*"))
    starter.goes_on(recipe, run)
    assert ending(run) == straight


def test_too_little_room_is_seen_before_anything_is_written(
    recipe: Path, straight: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = start_training(read_recipe(recipe), tmp_path / "run")
    usage = shutil.disk_usage(tmp_path)
    with pytest.MonkeyPatch.context() as context:
        for report in running.steps():
            if report.step == 4:
                context.setattr(shutil, "disk_usage", lambda path: usage._replace(free=2**20 + 1000))
                break
        message = (
            r"step-5: the checkpoint could not be written: it needs 1\.\d MiB, and the disk has 1.0 MiB left; earlier"
        )
        with pytest.raises(UserError, match=message):
            list(running.steps())
    assert newest(tmp_path / "run" / "checkpoints") == tmp_path / "run" / "checkpoints" / "step-4"
    list(start_training(read_recipe(recipe), tmp_path / "run", resume=True).steps())
    assert ending(tmp_path / "run") == straight


SCRIPT = """
set -u
mount -t tmpfs -o size=2400k tmpfs "$1" || exit 99
"$2" -m polytask train "$3" --run "$1/run"; echo "code $?"; ls -a "$1/run/checkpoints"
mount -o remount,size=20m "$1"
"$2" -m polytask train "$3" --run "$1/run" --resume; echo "code $?"
cp -r "$1/run" "$4"
"""


@pytest.mark.slow
def test_a_real_disk_that_is_too_small(recipe: Path, straight: dict[str, Any], tmp_path: Path) -> None:
    mount = tmp_path / "small"
    mount.mkdir()
    script = [
        "unshare",
        "-rm",
        "sh",
        "-c",
        SCRIPT,
        "sh",
        str(mount),
        sys.executable,
        str(recipe),
        str(tmp_path / "copy"),
    ]
    if (
        shutil.which("unshare") is None
        or (done := subprocess.run(script, capture_output=True, text=True)).returncode == 99
    ):
        pytest.skip("a disk of one's own needs user namespaces, and this machine has none")
    print(done.stdout, done.stderr)
    codes = [line for line in done.stdout.splitlines() if line.startswith("code")]
    assert codes == ["code 1", "code 0"]
    assert "the checkpoint could not be written: it needs" in done.stderr
    assert "Traceback" not in done.stderr
    assert ending(tmp_path / "copy") == straight
    assert list(numbered(tmp_path / "copy" / "checkpoints", "step-")) == [STEPS - 1, STEPS]
