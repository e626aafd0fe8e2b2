"""The files beside a run's model, damaged: one message that names the file, whatever the damage and the command."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from polytask import Finished, UserError, evaluate_run, export_adapter, load, write_report
from polytask.runs.folder import RunFolder
from polytask.runs.joining import read_old_run
from polytask.runs.report import read_run
from polytask.runs.resume import data_changes, read_environment, recipe_changes
from polytask.studies.cells import summary_of

DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "half": lambda content: content[: len(content) // 2],
    "not UTF-8": lambda content: b"\xff\xfe" + content,
    "brackets": lambda _: b"[" * 200_000 + b"\n",
    "braces": lambda _: b'{"a":' * 200_000 + b"\n",
    "a list": lambda _: b"[1, 2]\n",
    "a number": lambda _: b"5\n",
    "other fields": lambda _: b'{"tasks": 5, "data": [1], "evaluations": "x", "kind": [], "step": {}, "name": {}}\n',
}
COMMANDS: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "report of summary.json": ("summary.json", lambda run: read_run(RunFolder(run))),
    "report of metrics.jsonl": ("metrics.jsonl", lambda run: read_run(RunFolder(run))),
    "report of environment.json": ("environment.json", lambda run: read_run(RunFolder(run))),
    "report of recipe.yaml": ("recipe.yaml", lambda run: read_run(RunFolder(run))),
    "evaluate": ("recipe.yaml", evaluate_run),
    "add-task": ("recipe.yaml", read_old_run),
    "export": ("summary.json", lambda run: export_adapter(run, "opinion", run / "o.safetensors")),
    "predict": ("summary.json", lambda run: shutil.rmtree(run / "model") or load(run)),
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("command", COMMANDS)
def test_the_file_is_named(tiny_run: Finished, tmp_path: Path, command: str, damage: str) -> None:
    file, use = COMMANDS[command]
    run = tmp_path / "run"
    shutil.copytree(tiny_run.folder, run)
    content = DAMAGE[damage]((run / file).read_bytes())
    (run / file).write_bytes(content[:5_000] if file == "recipe.yaml" else content)  # PyYAML is slow with brackets
    said = refused(use, run)
    assert said is None or file in said or (command == "predict" and "no trained model" in said)


def test_a_summary_with_other_fields_is_reported(tiny_run: Finished, tmp_path: Path) -> None:
    shutil.copytree(tiny_run.folder, tmp_path / "run")
    (tmp_path / "run" / "summary.json").write_bytes(DAMAGE["other fields"](b""))
    with pytest.raises(UserError, match=r"summary\.json: there is no field 'data'"):
        write_report(tmp_path / "run")


def refused(use: Callable[[Path], Any], run: Path) -> str | None:
    try:
        use(run)
    except UserError as error:
        return str(error)
    return None


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_run_resumes_without_its_environment_file(
    tiny_run: Finished, tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.copytree(tiny_run.folder, tmp_path / "run")
    path = tmp_path / "run" / "environment.json"
    path.write_bytes(DAMAGE[damage](path.read_bytes()))
    about = read_environment(RunFolder(tmp_path / "run"))
    assert isinstance(about, dict)
    assert about or str(path) in caplog.text
    assert data_changes(RunFolder(tmp_path / "run"), {}, {"encoder_sha256": "x"}) is not None


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_summary_is_no_finished_run(tiny_run: Finished, tmp_path: Path, damage: str) -> None:
    shutil.copytree(tiny_run.folder, tmp_path / "run")
    path = tmp_path / "run" / "summary.json"
    path.write_bytes(DAMAGE[damage](path.read_bytes()))
    assert summary_of(tmp_path / "run") is None


def test_a_damaged_recipe_is_named_when_a_run_resumes(tiny_run: Finished, tmp_path: Path) -> None:
    shutil.copytree(tiny_run.folder, tmp_path / "run")
    (tmp_path / "run" / "recipe.yaml").write_bytes(b"\xff")
    with pytest.raises(UserError, match=r"recipe\.yaml: the recipe is not UTF-8 text"):
        recipe_changes(RunFolder(tmp_path / "run"), None)  # type: ignore[arg-type]
