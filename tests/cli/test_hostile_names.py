"""Names that a stranger chose, in files and of files: no command hands their control characters to the terminal."""

import os
from pathlib import Path

import pytest
import yaml

from polytask import Finished, train
from polytask.text.controls import visible

from .conftest import Cli, Said

EVIL = "\x1b[2J\u202eevil"
SHOWN = r"\x1b[2J\u202eevil"
SETTINGS = {
    "name": "plain",
    "encoder": {"layers": 1, "hidden": 16, "heads": 2, "ffn": 32, "positions": 32},
    "max_length": 16,
    "adapter": {"name": "houlsby", "size": 4},
    "train": {"epochs": 1, "steps_per_epoch": 2, "batch_size": 8},
}
TASK = {
    "kind": "classes",
    "text": f"text {EVIL}",
    "label": f"label {EVIL}",
    "train": f"{EVIL}.csv",
    "dev": f"{EVIL}.csv",
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with such a name, a data file, columns and classes with such names, and a recipe for it."""
    folder = tmp_path_factory.mktemp("place") / EVIL
    folder.mkdir()
    rows = "".join(f"the {n}th text,{'good' if n % 2 else EVIL}\n" for n in range(12))
    (folder / f"{EVIL}.csv").write_text(f"text {EVIL},label {EVIL}\n{rows}")
    (folder / f"{EVIL}.yaml").write_text(yaml.safe_dump({**SETTINGS, "tasks": {"mood": TASK}}))
    (folder / "two.yaml").write_text(yaml.safe_dump({**SETTINGS, "tasks": {"mood": TASK, "other": TASK}}))
    more = {"train": {"epochs": 1, "steps_per_epoch": 1}, "tasks": {"other": TASK}}
    (folder / "more.yaml").write_text(yaml.safe_dump(more))
    return folder


@pytest.fixture(scope="module")
def finished(place: Path) -> Finished:
    return train(place / f"{EVIL}.yaml", place / f"run {EVIL}")


def clean(said: Said, *shown: str) -> None:
    both = said.out + said.err
    assert both == visible(both)
    for words in (SHOWN, *shown):
        assert words in both, both


def test_commands_that_end_well(cli: Cli, place: Path, finished: Finished, tmp_path: Path) -> None:
    run, recipe = finished.folder, place / f"{EVIL}.yaml"
    file = tmp_path / f"{EVIL}.safetensors"
    commands: list[tuple[object, ...]] = [
        ("check", recipe),
        ("train", recipe, "--run", tmp_path / f"a {EVIL}"),
        ("interference", place / "two.yaml", "--every", 1, "--run", tmp_path / f"b {EVIL}"),
        ("pretrain", recipe, "--run", tmp_path / f"c {EVIL}"),
        ("add-task", run, place / "more.yaml", "--run", tmp_path / f"d {EVIL}"),
        ("predict", run, "--text", "a text"),
        ("predict", run, "--input", place / f"{EVIL}.csv", "--output", tmp_path / f"{EVIL}.csv"),
        ("export", run, "--adapter", "mood", "--output", file),
        ("combine", run, file, "--output", tmp_path / f"e {EVIL}"),
        ("report", run),
        ("encoder", run / "model"),
        ("init", tmp_path / f"new {EVIL}.yaml", "--task", f"mood={place / f'{EVIL}.csv'}"),
    ]
    for command in commands:
        said = cli(*command)
        assert said.code == 0, (command, said.err)
        clean(said)
    said = cli("evaluate", run)
    assert said.code == 0, said.err
    assert said.out == visible(said.out)
    said = cli("compare", run, tmp_path / f"d {EVIL}", "--study", tmp_path / f"f {EVIL}")
    assert said.out + said.err == visible(said.out + said.err)


def test_commands_that_fail(cli: Cli, place: Path, finished: Finished, tmp_path: Path) -> None:
    (tmp_path / f"{EVIL}.yaml").write_text(f'tasks: {{mood: {{kind: "{visible(EVIL)}"}}}}')
    damaged = tmp_path / f"{EVIL}.safetensors"
    damaged.write_bytes(b"\x1b")
    commands: list[tuple[object, ...]] = [
        ("train", tmp_path / "no" / EVIL),
        ("check", tmp_path / f"{EVIL}.yaml"),
        ("train", place / f"{EVIL}.yaml", "--set", f"{EVIL}=1"),
        ("train", place / f"{EVIL}.yaml", "--run", finished.folder),
        ("predict", tmp_path / EVIL, "--text", "a"),
        ("predict", finished.folder, "--task", EVIL, "--text", "a"),
        ("predict", finished.folder, "--input", place / f"{EVIL}.csv", "--output", "o.csv", "--columns", EVIL),
        ("combine", "minilm", damaged, "--output", tmp_path / "out"),
        ("export", finished.folder, "--adapter", EVIL),
        ("evaluate", tmp_path / EVIL),
        ("report", tmp_path / EVIL),
        ("compare", tmp_path / EVIL),
        ("methods", EVIL),
        ("init", tmp_path / "r.yaml", "--task", f"{EVIL}=x.csv"),
        ("encoder", tmp_path / EVIL),
    ]
    for command in commands:
        said = cli(*command)
        assert said.code == 1, (command, said)
        clean(said)


def test_pages_and_cards_show_them_too(finished: Finished) -> None:
    for page in (finished.report, finished.folder / "model" / "README.md"):
        text = page.read_text()
        assert text == visible(text)
        assert r"\u202eevil" in text


def test_a_name_that_is_not_utf_8(cli: Cli, tmp_path: Path) -> None:
    """Python cannot print such a name at all."""
    said = cli("train", os.fsdecode(os.fsencode(tmp_path) + b"/\xff\x1b.yaml"))
    assert said.code == 1
    assert r"\udcff\x1b.yaml: the recipe cannot be read" in said.err
