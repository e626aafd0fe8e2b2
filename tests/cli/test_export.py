"""polytask export: one task of a run as a file."""

from pathlib import Path
from typing import Any

import pytest

from polytask import Finished


def test_writes_the_file_and_prints_the_next_command(
    cli: Any, tiny_run: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = cli("export", tiny_run.folder, "--adapter", "opinion")
    assert said.code == 0, said.err
    size = Path("opinion.adapter.safetensors").stat().st_size
    assert said.out.startswith(f"opinion.adapter.safetensors: {size:,} bytes\nNext: polytask combine ENCODER ")
    again = cli("export", tiny_run.folder, "--adapter", "opinion")
    assert again.code == 1
    assert "opinion.adapter.safetensors: already exists" in again.err
    elsewhere = cli("export", tiny_run.folder, "--adapter", "opinion", "--output", "new/o.safetensors")
    assert elsewhere.code == 0, elsewhere.err
    assert Path("new/o.safetensors").read_bytes() == Path("opinion.adapter.safetensors").read_bytes()


def test_mistakes(cli: Any, tiny_run: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    wrong = cli("export", tiny_run.folder, "--adapter", "mood")
    assert wrong.code == 1
    assert "there is no task 'mood'. Valid: opinion, question, similarity" in wrong.err
    assert cli("export", tmp_path, "--adapter", "opinion").code == 1
    assert cli("export", tiny_run.folder).code == 2
    assert "Example" in cli("export", "--help").out
    assert not list(tmp_path.iterdir())
