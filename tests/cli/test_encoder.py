"""polytask encoder: what an encoder is, and that its files are good."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from polytask.pretrained.kinds import KINDS, new_encoder
from polytask.pretrained.weights import save_encoder


def test_the_real_encoder(cli: Any, minilm: Path) -> None:
    said = cli("encoder", "minilm")
    assert said.code == 0, said.err
    assert "22,713,216" in said.out
    assert "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db" in said.out


def test_no_such_encoder(cli: Any, monkeypatch: Any, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    said = cli("encoder", tmp_path / "nothing")
    assert said.code == 1
    assert "Traceback" not in said.err


def test_another_kind_of_encoder(cli: Any, tmp_path: Path) -> None:
    save_encoder(new_encoder(replace(KINDS["modernbert"].shape, layers=2, hidden=16, heads=2, ffn=24)), tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    said = cli("encoder", tmp_path)
    assert said.code == 0, said.err
    assert "kind: modernbert" in said.out
    assert "longest sequence: 8,192" in said.out
    assert "runs without fused kernels: its layers (pre-norm, rotary positions, local attention)" in said.out
