"""Checkpoints that are written while training continues are those of the moment at which they were asked for."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from polytask.training import checkpoint as ckpt
from polytask.training import checkpoint_writer
from polytask.training.checkpoint_writer import CheckpointWriter
from polytask.types import UserError


def a_checkpoint(tensor: torch.Tensor) -> ckpt.Checkpoint:
    return ckpt.Checkpoint({"model": {"w": tensor}}, {})


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Background writes start when it is set."""
    event, real = threading.Event(), ckpt.write_checkpoint

    def write(*arguments: Any) -> None:
        assert event.wait(60)
        real(*arguments)

    monkeypatch.setattr(checkpoint_writer, "write_checkpoint", write)
    return event


def fail_at(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real: Callable[..., None] = checkpoint_writer.write_checkpoint

    def write(folder: Path, checkpoint: ckpt.Checkpoint) -> None:
        real(folder, checkpoint)
        if folder.name == name:
            raise UserError("no room")

    monkeypatch.setattr(checkpoint_writer, "write_checkpoint", write)


@pytest.mark.parametrize("background", [False, True])
def test_what_follows_does_not_change_a_checkpoint(background: bool, gate: threading.Event, tmp_path: Path) -> None:
    writer, weights, complete = CheckpointWriter(background), torch.ones(3), []
    if not background:
        gate.set()
    writer.write(tmp_path / "step-1", a_checkpoint(weights), lambda: complete.append(ckpt.newest(tmp_path)))
    assert len(complete) == (not background)
    weights.add_(1)
    gate.set()
    writer.wait()
    assert complete == [tmp_path / "step-1"]
    assert torch.equal(ckpt.read_checkpoint(tmp_path / "step-1").tensors["model"]["w"], torch.ones(3))


def test_a_third_write_waits_for_the_first(gate: threading.Event, tmp_path: Path) -> None:
    writer, two_returned = CheckpointWriter(background=True), threading.Event()

    def open_gate() -> None:
        two_returned.wait(60)
        gate.set()

    opener = threading.Thread(target=open_gate)
    opener.start()
    for step in (1, 2):
        writer.write(tmp_path / f"step-{step}", a_checkpoint(torch.ones(1)))
    assert not (tmp_path / "step-1").exists()
    two_returned.set()
    writer.write(tmp_path / "step-3", a_checkpoint(torch.ones(1)))
    assert (tmp_path / "step-1").exists()
    writer.wait()
    opener.join()
    assert list(ckpt.numbered(tmp_path, ckpt.STEP)) == [1, 2, 3]


def test_after_a_failure_nothing_is_written_or_removed(
    gate: threading.Event, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint of a step needs the best model before it, so it must not replace an older one."""
    fail_at("best-2", monkeypatch)
    writer, removed = CheckpointWriter(background=True), []
    writer.write(tmp_path / "best-2", a_checkpoint(torch.ones(1)))
    writer.write(tmp_path / "step-2", a_checkpoint(torch.ones(1)), lambda: removed.append("step-1"))
    gate.set()
    with pytest.raises(UserError, match="no room"):
        writer.wait(tmp_path / "step-2")
    assert not (tmp_path / "step-2").exists()
    assert removed == []
    writer.wait()  # the error is raised once
    writer.write(tmp_path / "step-3", a_checkpoint(torch.ones(1)))
    writer.wait()
    assert ckpt.newest(tmp_path) == tmp_path / "step-3"


def test_the_next_write_raises_the_error(
    gate: threading.Event, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_at("step-1", monkeypatch)
    gate.set()
    writer = CheckpointWriter(background=True)
    writer.write(tmp_path / "step-1", a_checkpoint(torch.ones(1)))
    assert writer._thread is not None
    writer._thread.submit(int).result(60)  # the thread has ended the first write
    with pytest.raises(UserError, match="no room"):
        writer.write(tmp_path / "step-2", a_checkpoint(torch.ones(1)))
