"""Files and folders appear whole or not at all, and what killed processes left is cleared away."""

import os
import time
from pathlib import Path

import pytest

from polytask import whole
from polytask.whole import fresh_folder, put_in_place, whole_file, whole_folder, write_whole


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def flushed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of what was flushed, in order."""
    seen: list[str] = []
    real = whole.flush

    def flush(path: Path) -> None:
        real(path)
        seen.append(path.name)

    monkeypatch.setattr(whole, "flush", flush)
    return seen


# --- files ------------------------------------------------------------------------------------------------------------


def test_a_file_is_flushed_before_it_gets_its_name(tmp_path: Path, flushed: list[str]) -> None:
    with whole_file(tmp_path / "a.txt") as beside:
        beside.write_text("new")
        assert names(tmp_path) == [beside.name]
        assert not flushed
    assert names(tmp_path) == ["a.txt"]
    assert flushed == [beside.name, tmp_path.name]  # the content, and then the folder with the new name


def test_a_file_that_breaks_off_leaves_the_old_one(tmp_path: Path) -> None:
    write_whole(tmp_path / "a.txt", "ä old")

    def interrupted() -> None:
        with whole_file(tmp_path / "a.txt") as beside:
            beside.write_text("ne")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert names(tmp_path) == ["a.txt"]
    assert (tmp_path / "a.txt").read_bytes() == "ä old".encode()
    with pytest.raises(FileNotFoundError), whole_file(tmp_path / "b.txt"):
        pass  # nothing was written
    assert names(tmp_path) == ["a.txt"]


def test_what_a_killed_process_left_of_a_file_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / ".a.txt.part").write_text("left over, and longer than the new text")
    write_whole(tmp_path / "a.txt", "new")
    assert names(tmp_path) == ["a.txt"]
    assert (tmp_path / "a.txt").read_text() == "new"


# --- folders ----------------------------------------------------------------------------------------------------------


def fill(folder: Path, text: str) -> None:
    (folder / "inner").mkdir()
    (folder / "inner" / "file").write_text(text)


def content(folder: Path) -> str:
    return (folder / "inner" / "file").read_text()


def test_a_folder_is_flushed_before_it_gets_its_name(tmp_path: Path, flushed: list[str]) -> None:
    target = tmp_path / "above" / "target"
    with whole_folder(target) as fresh:
        fill(fresh, "new")
        assert not target.exists()
    assert names(target.parent) == ["target"]
    assert content(target) == "new"
    assert sorted(flushed[:-1]) == sorted(["file", "inner", fresh.name])
    assert flushed[-1] == "above"


def test_a_folder_that_breaks_off_leaves_the_old_one(tmp_path: Path) -> None:
    target = tmp_path / "target"
    for text in ("one", "two"):
        with whole_folder(target) as fresh:
            fill(fresh, text)

    def breaks_off() -> None:
        with whole_folder(target) as fresh:
            fill(fresh, "three")
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        breaks_off()
    assert content(target) == "two"
    assert names(tmp_path) == ["target"]


def test_a_shared_folder_that_is_good_stays(tmp_path: Path) -> None:
    target = tmp_path / "target"
    with whole_folder(target, stays=Path.is_dir) as late:
        fill(late, "late")
        with whole_folder(target, stays=Path.is_dir) as early:
            fill(early, "early")
    assert content(target) == "early"
    assert names(tmp_path) == ["target"]


def test_a_shared_folder_that_is_damaged_is_replaced(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    (target / "half").touch()
    with whole_folder(target, stays=lambda folder: (folder / "inner").is_dir()) as fresh:
        fill(fresh, "new")
    assert content(target) == "new"
    assert names(tmp_path) == ["target"]


def test_another_process_that_is_faster_by_a_hair_is_fine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "target"
    fresh = fresh_folder(target, shared=True)
    fill(fresh, "ours")
    real = Path.rename

    def rename(self: Path, to: Path) -> Path:
        if self == fresh:
            target.mkdir()
            fill(target, "theirs")
        return real(self, to)

    monkeypatch.setattr(Path, "rename", rename)
    put_in_place(fresh, target, Path.is_dir)
    assert content(target) == "theirs"
    assert names(tmp_path) == ["target"]


def test_a_rename_that_fails_for_another_reason_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fresh = fresh_folder(tmp_path / "target", shared=True)

    def refuse(self: Path, target: Path) -> None:
        raise FileNotFoundError if self.name == "target" else PermissionError(13, "not allowed")

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(PermissionError, match="not allowed"):
        put_in_place(fresh, tmp_path / "target", Path.is_dir)


def leftover(target: Path, age: float, file_age: float) -> Path:
    """A folder as a killed process leaves it, with a file that was written to so many seconds ago."""
    left = fresh_folder(target, shared=True)
    (left / "file").touch()
    now = time.time()
    os.utime(left / "file", (now - file_age, now - file_age))
    os.utime(left, (now - age, now - age))
    return left


def test_leftovers_of_a_shared_folder_go_after_a_day(tmp_path: Path) -> None:
    day = 24 * 3600
    fresh = leftover(tmp_path / "target", 60, 60)
    growing = leftover(tmp_path / "target", 3 * day, 60)  # its process began long ago and is still writing
    others = leftover(tmp_path / "target-2", 3 * day, 3 * day)
    stale = leftover(tmp_path / "target", 3 * day, 2 * day)
    (tmp_path / ".target.notes").mkdir()
    with whole_folder(tmp_path / "target", stays=Path.is_dir) as mine:
        assert not stale.exists()
        assert names(tmp_path) == sorted([".target.notes", *(path.name for path in (fresh, growing, others, mine))])


def test_leftovers_of_a_folder_of_ones_own_go_at_once(tmp_path: Path) -> None:
    leftover(tmp_path / "step-4", 0, 0)
    with whole_folder(tmp_path / "step-4") as mine:
        assert names(tmp_path) == [mine.name]
