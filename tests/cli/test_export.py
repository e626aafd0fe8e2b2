"""polytask export: one task of a run as a file, or a run for other programs; predictions with an ONNX model."""

from pathlib import Path
from typing import Any

import pytest

import polytask
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


@pytest.fixture(scope="module")
def onnx(tiny_run: Finished, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tests must not change the tiny run, so its export is elsewhere."""
    return polytask.export_onnx(tiny_run.folder, tmp_path_factory.mktemp("onnx") / "model", int8=True).folder


@pytest.mark.slow
def test_onnx_prints_the_comparison(
    cli: Any, tiny_run: Finished, onnx: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def copy(bundle: Any, tasks: Any, path: Path) -> None:
        path.write_bytes((onnx / "model.onnx").read_bytes())

    monkeypatch.setattr("polytask.export.onnx.write_graph", copy)
    monkeypatch.setattr("polytask.export.onnx.quantize", lambda path: None)
    monkeypatch.chdir(tmp_path)
    said = cli("export", tiny_run.folder, "--format", "onnx", "--int8", "--output", "small")
    assert said.code == 0, said.err
    assert "largest difference of an output" in said.out
    assert "Next: polytask predict small --engine onnx" in said.out
    refused = cli("export", tiny_run.folder, "--format", "onnx", "--output", "float")
    assert refused.code == 1
    assert "not exported: an output of task" in refused.err
    assert not Path("float").exists()


def test_predict_with_the_exported_model(cli: Any, onnx: Path, tmp_path: Path) -> None:
    said = cli("predict", onnx, "--engine", "onnx", "--task", "opinion", "--text", "Not bad.")
    assert said.code == 0, said.err
    assert said.out.startswith("opinion: ")
    (tmp_path / "new.csv").write_text('text\nNot bad\n""\nawful\n', encoding="utf-8")
    target = tmp_path / "predicted.csv"
    said = cli(
        "predict", onnx, "--engine", "onnx", "--task", "opinion", "--input", tmp_path / "new.csv", "--output", target
    )
    assert said.code == 0, said.err
    assert len(target.read_text().splitlines()) == 4
    assert cli("predict", onnx, "--engine", "other", "--text", "a").code == 2
    assert cli("predict", onnx, "--engine", "onnx", "--precision", "bf16", "--text", "a").code == 2
    assert "this is an exported ONNX model; predict with --engine onnx" in cli("predict", onnx, "--text", "a").err
    assert "no exported ONNX model here" in cli("predict", tmp_path, "--engine", "onnx", "--text", "a").err


def test_other_formats(cli: Any, tiny_run: Finished, tmp_path: Path) -> None:
    said = cli("export", tiny_run.folder, "--format", "hf", "--task", "question", "--output", tmp_path / "hf")
    assert said.code == 0, said.err
    assert "opened by sentence_transformers.SentenceTransformer" in said.out
    assert "The logit of yes is" in said.out
    said = cli("export", tiny_run.folder, "--format", "merged", "--output", tmp_path / "merged")
    assert said.code == 0, said.err
    assert cli("predict", tmp_path / "merged", "--task", "opinion", "--text", "Not bad.").code == 0
    for wrong in (
        ("--format", "onnx", "--adapter", "opinion"),
        ("--format", "other"),
        ("--format", "onnx", "--task", "opinion"),
        ("--adapter", "opinion", "--task", "opinion"),
        ("--format", "hf", "--int8"),
    ):
        assert cli("export", tiny_run.folder, *wrong).code == 2
