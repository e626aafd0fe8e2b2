"""Kernels run where there are Triton, a C compiler and a GPU that is new enough; nobody tries elsewhere."""

from pathlib import Path

import pytest
import torch

from polytask.kernels.triton_support import TRITON, kernels_run


def test_where_kernels_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ours: dict[str, tuple[int, int]] = {"cuda:0": (9, 0), "cuda:1": (7, 5)}
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: ours[str(device)])
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    new, old = torch.device("cuda:0"), torch.device("cuda:1")
    assert not kernels_run.__wrapped__(new), "there is no compiler"
    gcc = tmp_path / "gcc"
    gcc.write_text("#!/bin/sh\n")
    gcc.chmod(0o755)
    assert kernels_run.__wrapped__(new) == TRITON
    assert not kernels_run.__wrapped__(old)
    assert not kernels_run.__wrapped__(torch.device("cpu"))
