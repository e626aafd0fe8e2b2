"""The contracts check methods that they do not know by name: `pytest tests/contracts -k NAME`."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
FILES = ("test_adapters.py", "test_fused.py", "test_heads.py", "test_losses.py", "test_resume.py")


@pytest.mark.slow
def test_a_new_adapter_head_and_loss_are_checked() -> None:
    """In a process of its own, because tables are read when tests are collected."""
    paths = [str(HERE.parent / "fixtures"), *filter(None, [os.environ.get("PYTHONPATH")])]
    # The interpreter's process would not have the plugin's tables.
    chosen = "stranger and not interpreter"
    options = ["-p", "strangers", "-p", "no:cacheprovider", "-p", "no:xdist", "-q", "-rA", "-k", chosen]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *(str(HERE / file) for file in FILES)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for file in FILES:
        assert f"PASSED tests/contracts/{file}" in done.stdout
