"""polytask combine: files of two runs, one model, the same answers."""

from pathlib import Path
from typing import Any

import pytest

from polytask import Finished
from polytask.cli.combine import split_name

RECIPE = """
name: {task}
encoder: {{layers: 2, hidden: 32, heads: 4, ffn: 64, positions: 128}}
tasks:
  {task}: {{kind: {kind}, text: {text}, label: {label}, train: "sample:{file}-train", dev: "sample:{file}-dev"}}
adapter: {{name: houlsby, size: 4}}
optimizer: {{lr: 3e-3}}
train: {{epochs: 1, steps_per_epoch: 5, parts: adapters}}
"""
TASKS = {
    "opinion": {"kind": "classes", "text": "text", "label": "opinion", "file": "opinions"},
    "same": {"kind": "yes_no", "text": "[question1, question2]", "label": "duplicate", "file": "questions"},
}


def test_two_runs_become_one_model_with_the_same_answers(
    cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for task, fields in TASKS.items():
        Path(f"{task}.yaml").write_text(RECIPE.format(task=task, **fields))
        for command in (["train", f"{task}.yaml"], ["export", f"runs/{task}", "--adapter", task]):
            said = cli(*command)
            assert said.code == 0, said.err
    files = ["mood=opinion.adapter.safetensors", "same.adapter.safetensors"]
    said = cli("combine", "runs/same", *files, "--output", "models/two")
    assert said.code == 0, said.err
    assert said.out.startswith("models/two: mood, same\nNext: polytask predict models/two --task mood")
    pair = ["--text", "How old is it?", "--text2", "What is its age?"]
    for before, after, texts in [("opinion", "mood", ["--text", "Not bad."]), ("same", "same", pair)]:
        old = cli("predict", f"runs/{before}", "--task", before, *texts)
        new = cli("predict", "models/two", "--task", after, *texts)
        assert new.code == 0, new.err
        assert new.out.partition(": ")[2] == old.out.partition(": ")[2]
    again = cli("combine", "runs/same", *files, "--output", "models/two")
    assert again.code == 1
    assert "models/two: already exists" in again.err


def test_mistakes(cli: Any, tiny_run: Finished, minilm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli("export", tiny_run.folder, "--adapter", "opinion").code == 0
    file = "opinion.adapter.safetensors"
    twice = cli("combine", tiny_run.folder, file, file, "--output", "new")
    assert twice.code == 1
    assert "also has a task opinion; rename one of them with NAME=FILE" in twice.err
    missing = cli("combine", tiny_run.folder, "mood=none.safetensors", "--output", "new")
    assert missing.code == 1
    assert "none.safetensors: there is no such file" in missing.err
    other = cli("combine", minilm, file, "--output", "new")
    assert other.code == 1
    assert "was trained on another encoder" in other.err
    assert cli("combine", tiny_run.folder, file).code == 2
    assert cli("combine", tiny_run.folder, "--output", "new").code == 2
    assert "Example" in cli("combine", "--help").out
    assert [path.name for path in tmp_path.iterdir()] == [file]


def test_a_file_whose_name_has_an_equals_sign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("lr=3.safetensors").touch()
    assert split_name("lr=3.safetensors") == "lr=3.safetensors"
    assert split_name("mood=lr=3.safetensors") == ("mood", "lr=3.safetensors")
    assert split_name("plain.safetensors") == "plain.safetensors"
