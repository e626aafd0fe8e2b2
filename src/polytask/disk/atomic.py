"""Atomic writes: files and folders are written in a hidden folder, flushed to disk, and renamed.

A killed process leaves at most a hidden folder next to the target, which the next write of the same target removes.
Two processes may write the same target at once: the last one wins. Files get the mode that the user's umask gives to
new files. A target that is a link is replaced, not followed. If the target cannot be written, the error is an
`Unwritable` that names the target.
"""

import errno
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from safetensors import SafetensorError

from polytask.disk.hidden_folder import HiddenFolder, hidden_name
from polytask.disk.writable import DISK_FULL, check_target, unwritable, writing


def flush(path: Path, file_mode: int | None = None) -> None:
    """Sets a file's mode, if one is given, and waits until the file's content or the folder's entries are on disk."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        mode = os.fstat(handle).st_mode
        # Some libraries (safetensors) create files that only the user can read.
        if file_mode is not None and stat.S_ISREG(mode) and stat.S_IMODE(mode) != file_mode:
            os.fchmod(handle, file_mode)
        os.fsync(handle)
    finally:
        os.close(handle)


def flush_parent(path: Path) -> None:
    """Waits until a new name is on disk. The folder that contains it may be a link."""
    flush(path.parent.resolve())


@contextmanager
def _naming_target(hidden: Path, target: Path) -> Iterator[None]:
    """Turns errors about files in the hidden folder into errors about the target; others pass: callers also read."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        if _is_about(error, hidden):
            raise unwritable(target, error) from error
        raise


def _is_about(error: OSError | SafetensorError, folder: Path) -> bool:
    if isinstance(error, SafetensorError):
        return True
    if error.filename is not None:
        return str(error.filename).startswith(str(folder))
    return error.errno in DISK_FULL


# --- files ------------------------------------------------------------------------------------------------------------


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Yields an empty file to write to. It becomes `path` on success and is removed on an error.

    Missing parent folders are created. A library may replace the yielded file by a new one.
    """
    check_target(path)
    with writing(path):
        hidden = HiddenFolder(path, mode=0o700)
    try:
        file = hidden.path / path.name
        with writing(path):
            handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666)
            mode = stat.S_IMODE(os.fstat(handle).st_mode)
            os.close(handle)
        with _naming_target(hidden.path, path):
            yield file
        with writing(path):
            flush(file, mode)
            file.replace(path)
            flush_parent(path)
    finally:
        hidden.discard()


def write_atomically(path: Path, text: str) -> None:
    """Writes a UTF-8 text file; an existing one is replaced."""
    with atomic_file(path) as file:
        file.write_text(text, encoding="utf-8")


# --- folders ----------------------------------------------------------------------------------------------------------


def never(_: Path) -> bool:
    return False


@contextmanager
def atomic_folder(target: Path, keep_if: Callable[[Path], bool] = never) -> Iterator[Path]:
    """Yields an empty folder to fill. It becomes `target` on success and is removed on an error.

    An existing target is replaced, unless `keep_if(target)` is true.
    """
    check_target(target, folder=True)
    with writing(target):
        hidden = HiddenFolder(target)
    try:
        with _naming_target(hidden.path, target):
            yield hidden.path
        with writing(target):
            put_in_place(hidden, target, keep_if)
    finally:
        hidden.discard()


def put_in_place(hidden: HiddenFolder, target: Path, keep_if: Callable[[Path], bool] = never) -> None:
    """Flushes the hidden folder and renames it to `target`, unless `keep_if(target)` is true."""
    folder = hidden.path
    file_mode = stat.S_IMODE(folder.stat().st_mode) & 0o666
    for path in (*folder.rglob("*"), folder):
        flush(path, file_mode)
    while not keep_if(target):
        old = hidden_name(target)
        with suppress(FileNotFoundError):  # a rename cannot replace a folder that is not empty
            target.rename(old)
        try:
            folder.rename(target)
        except OSError as error:
            # Another process has just put its folder there: keep it if it is good, otherwise replace it in turn.
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST) and not keep_if(target):
                with suppress(OSError):
                    old.rename(target)
                raise
            _remove(old)
            continue
        flush_parent(target)  # the new folder's name is on disk before the old folder is removed
        _remove(old)
        break
    hidden.discard()


def _remove(path: Path) -> None:
    if path.is_symlink():
        path.unlink()
    else:
        shutil.rmtree(path, ignore_errors=True)
