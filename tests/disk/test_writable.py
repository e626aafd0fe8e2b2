"""Errors of the operating system become messages that name the target and say what to do."""

import errno
import os
from pathlib import Path

import pytest
from safetensors import SafetensorError

from polytask.disk.writable import Unwritable, check_target, make_folder, open_in_place, unwritable, writing
from polytask.types import UserError


def test_a_target_that_can_be_written_is_accepted(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "dangling").symlink_to("nothing")
    for name in ("file", "new", "dangling"):
        check_target(tmp_path / name)
    check_target(tmp_path / "folder", folder=True)
    check_target(tmp_path / "new", folder=True)


@pytest.mark.parametrize(
    ("name", "folder", "reason"),
    [
        ("folder", False, "a folder with this name exists; choose the name of a file"),
        ("file", True, "a file with this name exists; a part of the path is a file instead of a folder"),
        ("file/below", False, "Not a directory; a part of the path is a file"),
        ("n" * 256, False, "File name too long; names are limited to 255 bytes"),
        ("loop", False, "Too many levels of symbolic links; remove the link"),
        ("device", False, "it is not a regular file; choose the name of a regular file"),
    ],
)
def test_a_target_that_cannot_be_written_is_refused(tmp_path: Path, name: str, folder: bool, reason: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "device").symlink_to("/dev/null")
    with pytest.raises(UserError) as caught:
        check_target(tmp_path / name, folder)
    assert str(caught.value).startswith(f"{tmp_path / name}: cannot be written: {reason}")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_full_disk_is_reported_with_a_remedy(number: int) -> None:
    message = r"^a/b: cannot be written: .*; free some space and run the command again"
    with pytest.raises(UserError, match=message), writing(Path("a/b")):
        raise OSError(number, os.strerror(number), "a/b.part")


def test_an_error_about_a_file_inside_names_the_target_and_keeps_the_reason() -> None:
    inner = unwritable(Path("folder/.part"), OSError(errno.EROFS, "Read-only file system"))
    outer = unwritable(Path("folder"), inner)
    assert str(outer) == "folder: cannot be written: Read-only file system; choose a folder on another disk"
    assert (outer.errno, outer.filename) == (errno.EROFS, "folder")
    assert isinstance(outer, OSError)  # for callers that handle those
    with pytest.raises(Unwritable) as caught, writing(Path("folder")):
        raise inner
    assert caught.value is inner


def test_errors_of_safetensors_and_without_a_text_are_reported() -> None:
    assert str(unwritable(Path("x"), SafetensorError("I/O error"))) == "x: cannot be written: I/O error"
    assert str(unwritable(Path("x"), OSError("odd"))) == "x: cannot be written: odd"


def test_other_errors_pass() -> None:
    with pytest.raises(ValueError, match="mine"), writing(Path("x")):
        raise ValueError("mine")


def test_a_folder_and_its_parents_are_created(tmp_path: Path) -> None:
    make_folder(tmp_path / "a" / "b")
    make_folder(tmp_path / "a" / "b")
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"file/c: cannot be written: Not a directory"):
        make_folder(tmp_path / "file" / "c")


def test_a_file_written_in_place_is_never_a_link(tmp_path: Path) -> None:
    with open_in_place(tmp_path / "file", "w") as file:
        file.write("é")
    assert (tmp_path / "file").read_bytes() == "é".encode()
    with open_in_place(tmp_path / "file", "ab") as file:
        file.write(b"!")
    (tmp_path / "link").symlink_to("file")
    with pytest.raises(UserError, match="link: cannot be written: Too many levels of symbolic links; remove the link"):
        open_in_place(tmp_path / "link", "w")
    assert (tmp_path / "file").read_text(encoding="utf-8") == "é!"
