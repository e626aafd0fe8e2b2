"""Hidden folders: those of killed processes are removed by the next write, those in use are left."""

import fcntl
import os
import time
from pathlib import Path

import pytest

from polytask.disk import hidden_folder
from polytask.disk.hidden_folder import HiddenFolder, clear_leftovers

DAY = 24 * 3600


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def killed(hidden: HiddenFolder) -> Path:
    """The folder as a killed process leaves it: it exists and is not locked."""
    hidden.unlock()
    return hidden.path


def aged(hidden: HiddenFolder, age: float, file_age: float) -> HiddenFolder:
    """Sets the age in seconds of the folder and of a file in it."""
    (hidden.path / "file").touch()
    for path, seconds in ((hidden.path / "file", file_age), (hidden.path, age)):
        os.utime(path, (time.time() - seconds, time.time() - seconds))
    return hidden


def test_leftovers_of_the_same_target_go_at_once(tmp_path: Path) -> None:
    left = killed(HiddenFolder(tmp_path / "target"))
    (left / "half").write_text("a file")
    alive = HiddenFolder(tmp_path / "target")
    other = killed(HiddenFolder(tmp_path / "target-2"))
    (tmp_path / ".target.notes").mkdir()
    mine = HiddenFolder(tmp_path / "target")
    assert names(tmp_path) == sorted([".target.notes", alive.path.name, other.name, mine.path.name])
    for folder in (alive, mine):
        folder.discard()
    assert names(tmp_path) == sorted([".target.notes", other.name])
    clear_leftovers(tmp_path)
    assert names(tmp_path) == [".target.notes"]


def test_folders_that_are_in_use_are_no_leftovers(tmp_path: Path) -> None:
    alive, left = HiddenFolder(tmp_path / "one"), killed(HiddenFolder(tmp_path / "two"))
    clear_leftovers(tmp_path)
    assert alive.path.exists()
    assert not left.exists()
    alive.discard()


def test_a_folder_that_is_old_and_still_written_stays(tmp_path: Path) -> None:
    alive = aged(HiddenFolder(tmp_path / "target"), 3 * DAY, 3 * DAY)  # its process waits for something
    HiddenFolder(tmp_path / "target").discard()
    assert names(tmp_path) == [alive.path.name]
    alive.discard()


@pytest.mark.parametrize("why", ["no locks", "another machine"])
def test_without_a_lock_to_trust_leftovers_go_after_a_day(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    if why == "no locks":

        def refuse(handle: int, operation: int) -> None:
            raise OSError("this disk has no locks")

        monkeypatch.setattr(fcntl, "flock", refuse)
    fresh = aged(HiddenFolder(tmp_path / "target"), 60, 60)
    growing = aged(HiddenFolder(tmp_path / "target"), 3 * DAY, 60)  # its process began long ago
    stale = aged(HiddenFolder(tmp_path / "target"), 3 * DAY, 2 * DAY)
    for folder in (fresh, growing, stale):
        killed(folder)
    if why == "another machine":
        monkeypatch.setattr("socket.gethostname", lambda: "elsewhere")
    HiddenFolder(tmp_path / "target").discard()
    assert not stale.path.exists()
    assert names(tmp_path) == sorted([fresh.path.name, growing.path.name])


def test_a_folder_removed_before_it_is_locked_is_created_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, seen = Path.mkdir, []

    def mkdir(self: Path, *arguments: int, **options: bool) -> None:
        real(self, *arguments, **options)
        if self.name.startswith(".target.") and not seen:
            seen.append(self)
            hidden_folder._remove_leftover(self)  # another process, just now

    monkeypatch.setattr(Path, "mkdir", mkdir)
    created = HiddenFolder(tmp_path / "target")
    assert names(tmp_path) == [created.path.name]
    assert created.path != seen[0]
    created.discard()


def test_a_link_that_looks_like_a_leftover_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "precious").touch()
    (tmp_path / f".target.{'a' * 32}").symlink_to(tmp_path / "home")
    HiddenFolder(tmp_path / "target").discard()
    clear_leftovers(tmp_path)
    assert names(tmp_path / "home") == ["precious"]
