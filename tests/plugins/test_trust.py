"""A plug-in is trusted by the SHA-256 of its content, in a folder that only the user can write to."""

import hashlib
from pathlib import Path

import pytest

from polytask.plugins.trust import (
    FOLDER,
    MAX_BYTES,
    check_trusted,
    config_folder,
    is_trusted,
    read_plugin,
    trust_plugin,
    trusted_plugins,
    write_trusted,
)
from polytask.types import UserError


@pytest.fixture
def plugin(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text("x = 1\n")
    return path


def test_the_configuration_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert config_folder() == tmp_path / "config"
    monkeypatch.delenv("POLYTASK_CONFIG")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    assert config_folder() == tmp_path / "xdg" / "polytask"
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert config_folder() == tmp_path / "home" / ".config" / "polytask"


def test_trust_belongs_to_the_content(plugin: Path) -> None:
    digest = hashlib.sha256(plugin.read_bytes()).hexdigest()
    assert not is_trusted(digest)
    with pytest.raises(UserError, match=f"not trusted .SHA-256 {digest}"):
        check_trusted(plugin, digest)
    assert trust_plugin(plugin) == trust_plugin(str(plugin)) == digest
    check_trusted(plugin, digest)
    plugin.write_text("x = 2\n")
    assert not is_trusted(hashlib.sha256(plugin.read_bytes()).hexdigest())


def test_the_marker_names_the_file_and_removing_it_takes_the_trust_back(plugin: Path) -> None:
    digest = trust_plugin(plugin)
    marker = config_folder() / FOLDER / digest
    assert marker.read_text() == f"{plugin}\n"
    marker.unlink()
    assert not is_trusted(digest)


@pytest.mark.parametrize("mode", [0o770, 0o702])
def test_a_folder_that_others_can_write_to_does_not_count(plugin: Path, mode: int) -> None:
    digest = trust_plugin(plugin)
    (config_folder() / FOLDER).chmod(mode)
    assert not is_trusted(digest)
    with pytest.raises(UserError, match=r"other users can write to this folder.*; remove .* run: chmod 700"):
        trust_plugin(plugin)


def test_trust_can_be_written_for_another_machine(
    plugin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert trusted_plugins() == []
    digest = trust_plugin(plugin)
    assert trusted_plugins() == [digest]
    write_trusted(tmp_path / "other", trusted_plugins())
    monkeypatch.setenv("POLYTASK_CONFIG", str(tmp_path / "other"))
    assert is_trusted(digest)
    assert not is_trusted(hashlib.sha256(b"another").hexdigest())


def test_a_link_in_place_of_a_marker_is_not_followed(plugin: Path, tmp_path: Path) -> None:
    folder = config_folder() / FOLDER
    folder.mkdir(parents=True, mode=0o700)
    (folder / hashlib.sha256(plugin.read_bytes()).hexdigest()).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError):
        trust_plugin(plugin)
    assert not (tmp_path / "elsewhere").exists()


def test_files_that_are_no_plug_ins(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"mine.txt: a plug-in must be a Python file, whose name ends in .py"):
        read_plugin(tmp_path / "mine.txt")
    with pytest.raises(UserError, match="gone"):
        read_plugin(tmp_path / "gone.py")
    (tmp_path / "large.py").write_bytes(b"#" * (MAX_BYTES + 1))
    with pytest.raises(UserError, match="large"):
        read_plugin(tmp_path / "large.py")
