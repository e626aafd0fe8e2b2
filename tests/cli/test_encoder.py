"""polytask encoder: what an encoder is, and that its files are good."""

from pathlib import Path
from typing import Any


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
