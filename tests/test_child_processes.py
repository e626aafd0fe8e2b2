"""Child processes run no code of the working directory."""

import subprocess
import sys
from pathlib import Path

from polytask.child_processes import python_module


def test_the_working_directory_is_not_searched(tmp_path: Path) -> None:
    for name in ("json", "shlex", "runpy", "pkgutil"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(9)")
    unsafe = subprocess.run(
        [sys.executable, "-m", "json.tool", "--help"], cwd=tmp_path, capture_output=True, check=False
    )
    assert unsafe.returncode == 9
    done = subprocess.run([*python_module("json.tool"), "--help"], cwd=tmp_path, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert python_module("pip")[0] == sys.executable


def test_every_child_is_started_that_way() -> None:
    """Only child_processes.py names the interpreter, and Python's `multiprocessing` is not used."""
    source = Path(sys.modules["polytask"].__file__ or "").parent
    ways = ("sys.executable", "import multiprocessing", "from multiprocessing", "torch.multiprocessing")
    found = [p.name for p in source.rglob("*.py") if any(way in p.read_text() for way in ways)]
    assert found == ["child_processes.py"]
