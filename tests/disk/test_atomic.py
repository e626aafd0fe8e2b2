"""Files and folders appear whole or not at all, with the usual mode, and never through a planted link."""

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from polytask.disk import atomic
from polytask.disk.atomic import atomic_file, atomic_folder, put_in_place, write_atomically
from polytask.disk.hidden_folder import HiddenFolder
from polytask.types import UserError


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def flushed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of what was flushed, in order."""
    seen: list[str] = []
    real = atomic.flush

    def flush(path: Path, file_mode: int | None = None) -> None:
        real(path, file_mode)
        seen.append(path.name)

    monkeypatch.setattr(atomic, "flush", flush)
    return seen


@pytest.fixture(params=[0o022, 0o077, 0o002])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


# --- files ------------------------------------------------------------------------------------------------------------


def test_a_file_is_flushed_before_it_gets_its_name(tmp_path: Path, flushed: list[str]) -> None:
    with atomic_file(tmp_path / "above" / "a.txt") as beside:
        beside.write_text("new")
        assert names(tmp_path / "above") == [beside.parent.name]
        assert not flushed
    assert names(tmp_path / "above") == ["a.txt"]
    assert flushed == ["a.txt", "above"]  # the content, and then the folder with the new name


def test_a_file_that_breaks_off_leaves_the_old_one(tmp_path: Path) -> None:
    write_atomically(tmp_path / "a.txt", "ä old")

    def interrupted() -> None:
        with atomic_file(tmp_path / "a.txt") as beside:
            beside.write_text("ne")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert names(tmp_path) == ["a.txt"]
    assert (tmp_path / "a.txt").read_bytes() == "ä old".encode()


def test_two_writers_of_one_file_do_not_disturb_each_other(tmp_path: Path) -> None:
    with atomic_file(tmp_path / "a.txt") as one:
        one.write_text("one")
        with atomic_file(tmp_path / "a.txt") as two:
            two.write_text("two")
        assert (tmp_path / "a.txt").read_text() == "two"
        assert one.read_text() == "one"
    assert (tmp_path / "a.txt").read_text() == "one"
    assert names(tmp_path) == ["a.txt"]


def test_planted_links_are_not_followed(tmp_path: Path) -> None:
    victim, target = tmp_path / "victim", tmp_path / "a.txt"
    victim.write_text("precious")
    for name in (".a.txt.part", ".a.txt.tmp", f".a.txt.{'0' * 32}"):
        (tmp_path / name).symlink_to(victim)
    write_atomically(target, "new")
    assert victim.read_text() == "precious"
    assert target.read_text() == "new"
    target.unlink()
    target.symlink_to(victim)
    write_atomically(target, "newer")  # the link itself is replaced, as a rename does
    assert victim.read_text() == "precious"
    assert not target.is_symlink()


def test_no_other_user_can_write_into_the_folder_of_a_file_in_progress(tmp_path: Path, umask: int) -> None:
    with atomic_file(tmp_path / "a.txt") as beside:
        assert mode(beside.parent) == 0o700
        with pytest.raises(FileExistsError):
            os.open(beside, os.O_CREAT | os.O_EXCL)  # it is there already: ours, and a regular file
        assert stat.S_ISREG(beside.lstat().st_mode)


def test_files_have_the_usual_mode(tmp_path: Path, umask: int) -> None:
    """Also those of a library that replaces the file it is given by one that only its user can read."""
    with atomic_file(tmp_path / "tensors") as beside:
        save_file({"a": torch.ones(2)}, beside)
    write_atomically(tmp_path / "text", "")
    with atomic_folder(tmp_path / "folder") as fresh:
        (fresh / "inner").mkdir()
        save_file({"a": torch.ones(2)}, fresh / "inner" / "tensors")
    found = [mode(tmp_path / name) for name in ("tensors", "text", "folder/inner/tensors")]
    assert found == [0o666 & ~umask] * 3
    assert mode(tmp_path / "folder") == 0o777 & ~umask


@pytest.mark.parametrize("name", ["n" * 255, "ü" * 127, "n" * 200, "[a]*?"])
def test_every_name_that_the_disk_takes_can_be_written(tmp_path: Path, name: str) -> None:
    left = HiddenFolder(tmp_path / name)
    left.unlock()  # as the kernel does when the process is killed
    write_atomically(tmp_path / name, "new")
    assert names(tmp_path) == [name]
    with atomic_folder(tmp_path / f"{name[:-1]}F") as fresh:
        (fresh / "file").touch()
    assert len(names(tmp_path)) == 2


# --- what the disk refuses --------------------------------------------------------------------------------------------


def test_refused_targets_have_one_message(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("old")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "to-device").symlink_to("/dev/null")
    refused = {
        "folder": "a folder with this name exists; choose the name of a file",
        "file/below": "Not a directory; a part of the path is a file instead of a folder",
        "n" * 256: "File name too long; names are limited to 255 bytes; choose a shorter one",
        f"{'n' * 256}/a": "File name too long",
        "loop": "Too many levels of symbolic links",
        "to-device": "it is not a regular file",
    }
    for name, why in refused.items():
        with pytest.raises(UserError) as caught, atomic_file(tmp_path / name):
            raise AssertionError("nothing is to be worked out for a target that cannot be written")
        assert str(caught.value).startswith(f"{tmp_path / name}: cannot be written: {why}")
        assert isinstance(caught.value, OSError)
    with pytest.raises(UserError, match="file: cannot be written: a file with this name exists"):
        atomic_folder(tmp_path / "file").__enter__()
    assert names(tmp_path) == ["file", "folder", "loop", "to-device"]
    assert Path("/dev/null").is_char_device()


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.ENOSPC])
def test_a_folder_that_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def refuse(self: Path, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
        if not exist_ok:
            raise OSError(number, os.strerror(number), str(self))

    monkeypatch.setattr(Path, "mkdir", refuse)
    for made in (atomic_file(tmp_path / "a.txt"), atomic_folder(tmp_path / "a.txt")):
        with pytest.raises(UserError, match=rf"/a\.txt: cannot be written: {os.strerror(number)}; ") as caught:
            made.__enter__()
        assert "/.a.txt." not in str(caught.value)


def test_only_errors_of_the_write_are_about_the_target(tmp_path: Path) -> None:
    def write(error: OSError) -> None:
        with atomic_file(tmp_path / "a.txt") as beside:
            if error.filename == "inside":
                error.filename = str(beside)
            raise error

    for error in (OSError(errno.ENOSPC, "full"), OSError(errno.EIO, "broken", "inside")):
        with pytest.raises(UserError, match=r"a\.txt: cannot be written"):
            write(error)
    with pytest.raises(FileNotFoundError, match=r"input\.csv"):
        write(FileNotFoundError(errno.ENOENT, "No such file", "input.csv"))
    assert not names(tmp_path)


# --- folders ----------------------------------------------------------------------------------------------------------


def fill(folder: Path, text: str) -> None:
    (folder / "inner").mkdir()
    (folder / "inner" / "file").write_text(text)


def content(folder: Path) -> str:
    return (folder / "inner" / "file").read_text()


def test_a_folder_is_flushed_before_it_gets_its_name(tmp_path: Path, flushed: list[str]) -> None:
    target = tmp_path / "above" / "target"
    with atomic_folder(target) as fresh:
        fill(fresh, "new")
        assert not target.exists()
    assert names(target.parent) == ["target"]
    assert content(target) == "new"
    assert sorted(flushed[:-1]) == sorted(["file", "inner", fresh.name])
    assert flushed[-1] == "above"


def test_a_folder_that_breaks_off_leaves_the_old_one(tmp_path: Path) -> None:
    target = tmp_path / "target"
    for text in ("one", "two"):
        with atomic_folder(target) as fresh:
            fill(fresh, text)

    def breaks_off() -> None:
        with atomic_folder(target) as fresh:
            fill(fresh, "three")
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        breaks_off()
    assert content(target) == "two"
    assert names(tmp_path) == ["target"]


def test_a_shared_folder_that_is_good_stays(tmp_path: Path) -> None:
    target = tmp_path / "target"
    with atomic_folder(target, keep_if=Path.is_dir) as late:
        fill(late, "late")
        with atomic_folder(target, keep_if=Path.is_dir) as early:
            fill(early, "early")
    assert content(target) == "early"
    assert names(tmp_path) == ["target"]


def test_a_shared_folder_that_is_damaged_is_replaced(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    (target / "half").touch()
    with atomic_folder(target, keep_if=lambda folder: (folder / "inner").is_dir()) as fresh:
        fill(fresh, "new")
    assert content(target) == "new"
    assert names(tmp_path) == ["target"]


def test_a_folder_that_another_process_wrote_first_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "target"
    hidden = HiddenFolder(target)
    fill(hidden.path, "ours")
    real = Path.rename

    def rename(self: Path, to: Path) -> Path:
        if self == hidden.path:
            target.mkdir()
            fill(target, "theirs")
        return real(self, to)

    monkeypatch.setattr(Path, "rename", rename)
    put_in_place(hidden, target, Path.is_dir)
    assert content(target) == "theirs"
    assert names(tmp_path) == ["target"]


def test_a_rename_that_fails_for_another_reason_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hidden = HiddenFolder(tmp_path / "target")

    def refuse(self: Path, target: Path) -> None:
        raise FileNotFoundError if self.name == "target" else PermissionError(13, "not allowed")

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(PermissionError, match="not allowed"):
        put_in_place(hidden, tmp_path / "target", Path.is_dir)
    hidden.discard()


def test_a_target_is_restored_if_the_new_one_cannot_be_renamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with atomic_folder(tmp_path / "target") as fresh:
        fill(fresh, "old")
    real = Path.rename

    def refuse(self: Path, target: Path) -> Path:
        if (self / "inner" / "file").read_text() == "new":
            raise PermissionError(errno.EACCES, "not allowed")
        return real(self, target)

    monkeypatch.setattr(Path, "rename", refuse)
    with (
        pytest.raises(UserError, match="target: cannot be written: not allowed"),
        atomic_folder(tmp_path / "target") as f,
    ):
        fill(f, "new")
    assert content(tmp_path / "target") == "old"
    assert names(tmp_path) == ["target"]


def test_two_writers_of_one_folder_do_not_disturb_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second also puts its folder there just when the first has moved the old one away."""
    target = tmp_path / "target"
    real, seen = Path.rename, []

    def rename(self: Path, to: Path) -> Path:
        if to == target and not seen:
            seen.append(self)
            with atomic_folder(target) as other:
                fill(other, "two")
        return real(self, to)

    monkeypatch.setattr(Path, "rename", rename)
    with atomic_folder(target) as one:
        fill(one, "one")
    assert content(target) == "one"
    assert names(tmp_path) == ["target"]


def test_a_folder_that_is_a_link_is_replaced(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "precious").touch()
    (tmp_path / "target").symlink_to(elsewhere)
    with atomic_folder(tmp_path / "target") as fresh:
        fill(fresh, "new")
    assert content(tmp_path / "target") == "new"
    assert names(elsewhere) == ["precious"]
    assert names(tmp_path) == ["elsewhere", "target"]
