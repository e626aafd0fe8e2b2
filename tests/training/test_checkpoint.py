"""Checkpoints appear whole or not at all, hold safetensors and JSON only, and give back what they were given."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from polytask.training import checkpoint as ckpt


def a_checkpoint(value: float = 1.0) -> ckpt.Checkpoint:
    return ckpt.Checkpoint({"model": {"w": torch.full((2, 3), value)}, "methods": {}}, {"step": 4, "best": None})


def test_round_trip(tmp_path: Path) -> None:
    ckpt.write_checkpoint(tmp_path / "step-4", a_checkpoint())
    back = ckpt.read_checkpoint(tmp_path / "step-4")
    assert torch.equal(back.tensors["model"]["w"], torch.ones(2, 3))
    assert back.state == {"step": 4, "best": None}
    assert {path.suffix for path in (tmp_path / "step-4").iterdir()} == {".safetensors", ".json"}


def test_a_write_that_breaks_off_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ckpt.write_checkpoint(tmp_path / "step-4", a_checkpoint(1.0))

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(json, "dumps", full)
    with pytest.raises(OSError, match="No space left"):
        ckpt.write_checkpoint(tmp_path / "step-4", a_checkpoint(2.0))
    with pytest.raises(OSError, match="No space left"):
        ckpt.write_checkpoint(tmp_path / "step-5", a_checkpoint(2.0))
    assert ckpt.newest(tmp_path) == tmp_path / "step-4"
    assert ckpt.read_checkpoint(tmp_path / "step-4").tensors["model"]["w"][0, 0] == 1.0


def test_newest_by_number_not_by_name(tmp_path: Path) -> None:
    assert ckpt.newest(tmp_path / "nothing") is None
    for step in (9, 10, 100):
        ckpt.write_checkpoint(tmp_path / f"step-{step}", a_checkpoint())
    assert ckpt.newest(tmp_path) == tmp_path / "step-100"


def test_optimizer_state_round_trip_keeps_each_parameters_own_count() -> None:
    def make() -> tuple[list[torch.nn.Parameter], torch.optim.Optimizer]:
        parameters = [torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(1))]
        return parameters, torch.optim.AdamW([{"params": [("a", parameters[0]), ("b", parameters[1])]}])

    (a, b), optimizer = make()
    for takes_part in (True, False, True):
        a.grad = torch.ones(3)
        b.grad = torch.ones(1) if takes_part else None
        optimizer.step()
    tensors = ckpt.optimizer_tensors(optimizer)
    assert (tensors["a/step"].item(), tensors["b/step"].item()) == (3, 2)
    (c, d), other = make()
    with torch.no_grad():
        c.copy_(a)
        d.copy_(b)
    ckpt.load_optimizer_tensors(other, tensors)
    for p in (a, b, c, d):
        p.grad = torch.full_like(p, 0.5)
    optimizer.step()
    other.step()
    assert torch.equal(a, c)
    assert torch.equal(b, d)
