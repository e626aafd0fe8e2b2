"""Hidden folders: what killed processes left goes with the next write, what others are writing stays."""

import fcntl
import os
import time
from pathlib import Path

import pytest

from polytask import hidden
from polytask.disk.hidden_folder import clear_leftovers, discard, fresh_folder

DAY = 24 * 3600


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def killed(folder: Path) -> Path:
    """The folder as the kernel leaves it of a process that is killed: there, and without its lock."""
    os.close(hidden._locks.pop(folder))
    return folder


def aged(folder: Path, age: float, file_age: float) -> Path:
    """With a file that was written to so many seconds ago."""
    (folder / "file").touch()
    for path, seconds in ((folder / "file", file_age), (folder, age)):
        os.utime(path, (time.time() - seconds, time.time() - seconds))
    return folder


def test_leftovers_of_the_same_target_go_at_once(tmp_path: Path) -> None:
    left = killed(fresh_folder(tmp_path / "target"))
    (left / "half").write_text("a file")
    alive = fresh_folder(tmp_path / "target")
    other = killed(fresh_folder(tmp_path / "target-2"))
    (tmp_path / ".target.notes").mkdir()
    mine = fresh_folder(tmp_path / "target")
    assert names(tmp_path) == sorted([".target.notes", alive.name, other.name, mine.name])
    for folder in (alive, mine):
        discard(folder)
    assert names(tmp_path) == sorted([".target.notes", other.name])
    clear_leftovers(tmp_path)
    assert names(tmp_path) == [".target.notes"]
    assert not hidden._locks


def test_a_folder_that_is_old_and_still_written_stays(tmp_path: Path) -> None:
    alive = aged(fresh_folder(tmp_path / "target"), 3 * DAY, 3 * DAY)  # its process waits for something
    discard(fresh_folder(tmp_path / "target"))
    assert names(tmp_path) == [alive.name]
    discard(alive)


@pytest.mark.parametrize("why", ["no locks", "another machine"])
def test_without_a_lock_to_trust_leftovers_go_after_a_day(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    if why == "no locks":

        def refuse(handle: int, operation: int) -> None:
            raise OSError("this disk has no locks")

        monkeypatch.setattr(fcntl, "flock", refuse)
    fresh = aged(fresh_folder(tmp_path / "target"), 60, 60)
    growing = aged(fresh_folder(tmp_path / "target"), 3 * DAY, 60)  # its process began long ago
    stale = aged(fresh_folder(tmp_path / "target"), 3 * DAY, 2 * DAY)
    for folder in (fresh, growing, stale):
        killed(folder)
    if why == "another machine":
        monkeypatch.setattr("socket.gethostname", lambda: "elsewhere")
    discard(fresh_folder(tmp_path / "target"))
    assert not stale.exists()
    assert names(tmp_path) == sorted([fresh.name, growing.name])


def test_one_that_is_swept_before_it_is_locked_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, seen = Path.mkdir, []

    def mkdir(self: Path, *arguments: int, **options: bool) -> None:
        real(self, *arguments, **options)
        if self.name.startswith(".target.") and not seen:
            seen.append(self)
            hidden._sweep(self)  # another process, just now

    monkeypatch.setattr(Path, "mkdir", mkdir)
    made = fresh_folder(tmp_path / "target")
    assert names(tmp_path) == [made.name]
    assert made != seen[0]
    discard(made)


def test_a_link_that_looks_like_a_leftover_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "precious").touch()
    (tmp_path / f".target.{'a' * 32}").symlink_to(tmp_path / "home")
    discard(fresh_folder(tmp_path / "target"))
    clear_leftovers(tmp_path)
    assert names(tmp_path / "home") == ["precious"]
