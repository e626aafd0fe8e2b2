"""Kernels are compiled where there is a C compiler and Triton, and nobody tries where there is none."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from polytask.trunk.kernels import kernels_compile


def test_without_a_compiler_there_are_no_kernels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not kernels_compile.__wrapped__()
    gcc = tmp_path / "gcc"
    gcc.write_text("#!/bin/sh\n")
    gcc.chmod(0o755)
    assert kernels_compile.__wrapped__() == (find_spec("triton") is not None)
