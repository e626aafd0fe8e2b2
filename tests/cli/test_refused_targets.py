"""A target that the disk refuses: one message that names it, in every command that writes, before the work is done."""

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from polytask import Finished, export_adapter

from .conftest import Cli

QUICKSTART = Path(__file__).parent.parent.parent / "recipes" / "quickstart.yaml"
LONG = "n" * 300


@pytest.fixture(scope="module")
def exported(tiny_run: Finished, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_adapter(tiny_run.folder, "opinion", tmp_path_factory.mktemp("exported") / "opinion.safetensors")


Command = Callable[[Path], list[object]]


@pytest.fixture
def commands(tiny_run: Finished, exported: Path, tmp_path: Path, tiny_settings: list[str]) -> dict[str, Command]:
    """Each command with its target left open."""
    (tmp_path / "in.csv").write_text("text\nGood.\n")
    (tmp_path / "mood.csv").write_text(
        "text,mood\n" + "".join(f"day {n},{'good' if n % 2 else 'bad'}\n" for n in range(40))
    )
    task = {"kind": "classes", "text": "text", "label": "mood", "train": "mood.csv", "dev": "mood.csv"}
    (tmp_path / "new.yaml").write_text(yaml.safe_dump({"tasks": {"mood": task}}))
    fixed = {key: yaml.safe_load(value) for key, _, value in (setting.partition("=") for setting in tiny_settings)}
    study = {"base": str(QUICKSTART), "set": fixed, "seeds": [0], "variants": {"a": {}, "b": {"max_length": 32}}}
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(study))
    shutil.copytree(tiny_run.folder, tmp_path / "other", ignore=shutil.ignore_patterns("checkpoints"))
    recipe = yaml.safe_load((tmp_path / "other" / "recipe.yaml").read_text())
    (tmp_path / "other" / "recipe.yaml").write_text(yaml.safe_dump({**recipe, "max_length": 99}))
    tiny = [word for setting in tiny_settings for word in ("--set", setting)]
    run = tiny_run.folder
    return {
        "train": lambda target: ["train", QUICKSTART, *tiny, "--run", target],
        "train --resume": lambda target: ["train", QUICKSTART, *tiny, "--run", target, "--resume"],
        "interference": lambda target: ["interference", QUICKSTART, *tiny, "--every", 5, "--run", target],
        "pretrain": lambda target: ["pretrain", QUICKSTART, *tiny, "--run", target],
        "add-task": lambda target: ["add-task", run, tmp_path / "new.yaml", "--run", target],
        "predict": lambda target: [
            "predict",
            run,
            "--task",
            "opinion",
            "--input",
            tmp_path / "in.csv",
            "--output",
            target,
        ],
        "export": lambda target: ["export", run, "--adapter", "opinion", "--output", target],
        "combine": lambda target: ["combine", run, exported, "--output", target],
        "init": lambda target: ["init", target, "--task", f"mood={tmp_path / 'mood.csv'}", "--force"],
        "compare study": lambda target: ["compare", tmp_path / "study.yaml", "--study", target],
        "compare runs": lambda target: ["compare", run, tmp_path / "other", "--study", target],
    }


FILES = ("predict", "init", "export")
"""Commands whose target is a file; that of the others is a folder."""


def refused(cli: Cli, command: list[object], target: Path) -> str:
    said = cli(*command)
    assert said.code == 1, said
    assert "Traceback" not in said.err
    message = said.err.removeprefix("error: ")
    assert said.err.startswith("error: ")
    assert message.startswith(str(target)), message
    return message


def test_too_long_a_name_and_a_file_in_the_way(cli: Cli, commands: dict[str, Command], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name, command in commands.items():
        for target, why in (
            (tmp_path / f"{LONG}.csv", "File name too long"),
            (tmp_path / LONG / "a.csv", "File name too long"),
            (tmp_path / "file" / "a.csv", "Not a directory"),
        ):
            message = refused(cli, command(target), target)
            assert why in message, (name, message)


def test_a_folder_for_a_file_and_a_file_for_a_folder(cli: Cli, commands: dict[str, Command], tmp_path: Path) -> None:
    (tmp_path / "folder.csv").mkdir()
    (tmp_path / "file.csv").touch()
    for name, command in commands.items():
        target = tmp_path / ("folder.csv" if name in FILES else "file.csv")
        message = refused(cli, command(target), target)
        said = ("a folder with this name exists", "a file with this name exists", "already exists")
        assert any(words in message for words in said), (name, message)
    assert not list((tmp_path / "folder.csv").iterdir())


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS])
def test_a_folder_that_cannot_be_written(
    cli: Cli, commands: dict[str, Command], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """The tests may run as root, for whom no folder is read-only."""
    place = tmp_path / "read-only"
    place.mkdir()
    real = os.mkdir

    def refuse(path: str, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        if os.path.dirname(path) == str(place):
            raise OSError(number, os.strerror(number), str(path))
        real(path, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "mkdir", refuse)
    del commands["train --resume"]
    for name, command in commands.items():
        message = refused(cli, command(place / "a.csv"), place)
        assert f"cannot be written: {os.strerror(number)}; choose a folder" in message, (name, message)
        assert "/.a.csv." not in message  # the name that the user gave, not a temporary one
    assert not list(place.iterdir())


def test_commands_that_write_into_a_run(cli: Cli, tiny_run: Finished, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(tiny_run.folder, run, ignore=shutil.ignore_patterns("checkpoints"))
    (run / "report.html").unlink()
    (run / "report.html").mkdir()
    refused(cli, ["report", run], run / "report.html")
    shutil.rmtree(run / "predictions")
    (run / "predictions").touch()
    refused(cli, ["evaluate", run], run / "predictions")


def test_a_lock_that_is_a_link_is_not_written_through(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".lock").symlink_to(tmp_path / "precious")
    message = refused(cli, ["train", QUICKSTART, "--run", tmp_path / "run", "--resume"], tmp_path / "run" / ".lock")
    assert "remove the link" in message
    assert (tmp_path / "precious").read_text() == "precious"
